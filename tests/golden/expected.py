"""What HAMi's and TensorFusion's own example manifests ask for, worked out by hand from what the two systems do.

One entry for each file: the pods in order (name, dialect, claims, constraints, preference, CPU in milli-cores and
memory in MiB), or the kinds that are skipped.
"""

from dataclasses import dataclass, field

from tessera.core.request import Claim, Constraints, Dialect, ModelRule, Preference
from tessera.core.share import (
    ComputeMilli,
    ComputeTflops,
    MemoryFraction,
    MemoryMiB,
    ShareSpec,
)

UUID = "GPU-03f69c50-207a-2038-9b45-23cac89cb67"
UBUNTU = ("ubuntu-container",)


@dataclass(frozen=True)
class Expected:
    """One pod."""

    name: str
    dialect: Dialect | None
    claims: tuple[Claim, ...] = ()
    constraints: Constraints | None = None
    preference: Preference = field(default_factory=Preference)
    node: tuple[int, int] = (0, 0)
    warnings: int = 0


def share(memory, compute, limit=None, *, exclusive=False):
    return ShareSpec(memory, memory, compute, limit or compute, exclusive)


def mib(amount):
    return MemoryMiB(amount)


def percent(amount):
    return MemoryFraction(amount * 10)


def cores(amount):
    return ComputeMilli(amount * 10)


WHOLE = share(percent(100), cores(100), exclusive=True)  # neither memory nor cores: the whole card, alone
FREE = (cores(0), cores(100))  # memory without cores: shares the card's compute without a limit


def hami(name, count, each, *, preference=None, containers=UBUNTU, node=(0, 0), **constraints):
    return Expected(
        name,
        Dialect.HAMI,
        (Claim(containers, count, each),),
        Constraints(vendor="NVIDIA", **constraints),
        preference or Preference(),
        node,
    )


HAMI = {
    "default_use.yaml": [hami("gpu-pod", 1, share(mib(3000), cores(30)))],
    "default_use_legacy.yaml": [hami("gpu-pod", 2, WHOLE)],
    "dynamic_mig_example.yaml": [
        hami(
            "gpu-pod",
            2,
            share(mib(8000), *FREE),
            preference=Preference(None, "binpack"),
            modes=frozenset({"mig"}),
        )
    ],
    "example.yaml": [
        hami("cuda-sample-vector-add-0", 1, share(mib(3000), *FREE), containers=("cuda-sample-vector-add",))
    ],
    "mig_example.yaml": [Expected("gpu-pod", None, warnings=1)],  # nvidia.com/mig-3g.20gb is not HAMi's
    "specify_card_type_not_use.yaml": [
        hami("gpu-pod", 2, WHOLE, models_denied=(ModelRule("1080"), ModelRule("2080")))
    ],
    "specify_card_type_to_use.yaml": [
        hami("gpu-pod", 2, WHOLE, models_allowed=(ModelRule("A100"), ModelRule("V100")))
    ],
    "specify_scheduling_policy.yaml": [hami("gpu-pod", 1, WHOLE, preference=Preference("spread", "binpack"))],
    "specify_uuid_not_use.yaml": [hami("gpu-pod", 2, WHOLE, uuids_denied=frozenset({UUID + "d"}))],
    "specify_uuid_to_use.yaml": [hami("gpu-pod", 1, WHOLE, uuids_allowed=frozenset({UUID + "d", UUID + "e"}))],
    "use_as_normal.yaml": [hami("gpu-pod1", 1, WHOLE), hami("gpu-pod2", 1, WHOLE)],
    "use_exclusive_card.yaml": [hami("gpu-pod1", 2, WHOLE)],
    "use_memory_fraction.yaml": [hami("gpu-pod", 2, share(percent(50), cores(30)))],
    "use_sharing_card.yaml": [
        hami("gpu-pod1", 1, share(percent(40), cores(60))),
        hami("gpu-pod2", 1, share(percent(60), cores(40))),
    ],
    "vllm_cross_vgpu.yaml": [
        hami("vllm-cross-vgpu-0", 2, share(percent(30), cores(30)), containers=("vllm",), node=(2000, 6144))
    ],
}
HAMI_SKIPPED = {"vllm_cross_vgpu.yaml": [("PersistentVolumeClaim", "vllm-cross-vgpu-cache")]}


def fusion(name, containers, tflops, gib, *, warnings):
    each = share(mib(gib * 1024), ComputeTflops(tflops * 1000))
    constraints = Constraints(modes=frozenset({"shared"}))  # soft isolation, TensorFusion's default
    return Expected(name, Dialect.TENSOR_FUSION, (Claim(containers, 1, each),), constraints, warnings=warnings)


# No opt-in label: one warning; a gang is one more.
GANG = [
    *(fusion(f"tf-deploy-gang-strict-{n}", ("worker",), 100, 10, warnings=2) for n in range(4)),
    *(fusion(f"tf-job-gang-min-members-override-{n}", ("worker",), 100, 10, warnings=2) for n in range(4)),
    *(fusion(f"tf-deploy-no-gang-{n}", ("worker",), 100, 10, warnings=1) for n in range(2)),
]

FUSION = {
    # gpupool, workload, and the legacy keys replicas, client-profile and generate-workload
    "pytorch.yaml": [fusion("pytorch-test-0", ("pytorch",), 10, 1, warnings=5)],
    "gang-scheduling-workloads.yaml": GANG,
}
FUSION_SKIPPED = {
    "gpu-info-config.yaml": [("", "")],
    "provider-ascend.yaml": [("ProviderConfig", "ascend-provider")],
    "provider-mthreads.yaml": [("ProviderConfig", "mthreads-provider")],
    "provider-nvidia.yaml": [("ProviderConfig", "nvidia-provider")],
    "provider-ppu.yaml": [("ProviderConfig", "ppu-provider")],
    "scheduler-config.yaml": [("KubeSchedulerConfiguration", "")],
    "tensorfusioncluster-ascend.yaml": [("TensorFusionCluster", "tensor-fusion")],
    "tensorfusioncluster-nvidia.yaml": [("TensorFusionCluster", "tensor-fusion")],
    "v1_gpu.yaml": [("GPU", "gpu-sample")],
    "v1_gpunode.yaml": [("GPUNode", "gpunode-sample")],
    "v1_gpunodeclaim.yaml": [("GPUNodeClaim", "gpunodeclaim-sample")],
    "v1_gpunodeclass.yaml": [("GPUNodeClass", "gpunodeclass-sample")],
    "v1_gpupool.yaml": [("GPUPool", "gpupool-sample")],
    "v1_gpuresourcequota.yaml": [
        ("GPUResourceQuota", "production-namespace"),
        ("GPUResourceQuota", "development-namespace"),
        ("GPUResourceQuota", "research-namespace"),
    ],
    "v1_schedulingconfigtemplate.yaml": [("SchedulingConfigTemplate", "schedulingconfigtemplate-sample")],
    "v1_tensorfusionconnection.yaml": [("TensorFusionConnection", "tensorfusionconnection-sample")],
    "v1_tensorfusionworkload.yaml": [("TensorFusionWorkload", "tensorfusionworkload-sample")],
    "v1_workloadprofile.yaml": [("WorkloadProfile", "defalut-workloadprofile")],
}

FOLDERS = {"hami/nvidia": (HAMI, HAMI_SKIPPED), "tensor-fusion": (FUSION, FUSION_SKIPPED)}
