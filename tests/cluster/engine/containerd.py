"""Configurations of containerd, by version: ``@DIR@`` is the node's folder, ``@CNI@`` the network plugins'.

CDI is on by default in 2.x and is asked for in 1.7; both read ``/var/run/cdi``. ``restrict_oom_score_adj`` keeps
it from asking for what a machine without CAP_SYS_RESOURCE refuses.
"""

from typing import Final

PAUSE_IMAGE: Final = "engine.test/pause:1"

VERSION_2: Final = f"""
version = 3
root = "@DIR@/containerd"
state = "@DIR@/containerd-state"
[grpc]
  address = "@DIR@/containerd.sock"
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "{PAUSE_IMAGE}"
[plugins."io.containerd.cri.v1.images".registry]
  config_path = "@DIR@/registries"
[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = true
  cdi_spec_dirs = ["/etc/cdi", "/var/run/cdi"]
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = ["@CNI@"]
    conf_dir = "@DIR@/cni"
[plugins."io.containerd.grpc.v1.cri"]
  stream_server_address = "127.0.0.1"
  stream_server_port = "0"
[plugins."io.containerd.nri.v1.nri"]
  disable = true
"""

VERSION_1_7: Final = f"""
version = 2
root = "@DIR@/containerd"
state = "@DIR@/containerd-state"
[grpc]
  address = "@DIR@/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE_IMAGE}"
  restrict_oom_score_adj = true
  enable_cdi = true
  cdi_spec_dirs = ["/etc/cdi", "/var/run/cdi"]
  stream_server_address = "127.0.0.1"
  stream_server_port = "0"
  [plugins."io.containerd.grpc.v1.cri".registry]
    config_path = "@DIR@/registries"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "@CNI@"
    conf_dir = "@DIR@/cni"
[plugins."io.containerd.nri.v1.nri"]
  disable = true
"""

CONFIGS: Final = {"2": VERSION_2, "1.7": VERSION_1_7}
