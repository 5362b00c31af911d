"""Kubeconfig files: who one is, and where the API server listens."""

import json
from pathlib import Path

from cluster.engine.certificates import KeyPair


def write_kubeconfig(path: Path, server: str, authority: Path, user: KeyPair | str) -> Path:
    """Write a kubeconfig for a client certificate or a bearer token; JSON, which is YAML too."""
    credentials = (
        {"token": user}
        if isinstance(user, str)
        else {"client-certificate": str(user.certificate), "client-key": str(user.key)}
    )
    path.touch(mode=0o600)
    path.write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "engine",
                "contexts": [{"name": "engine", "context": {"cluster": "engine", "user": "me"}}],
                "clusters": [
                    {"name": "engine", "cluster": {"server": server, "certificate-authority": str(authority)}}
                ],
                "users": [{"name": "me", "user": credentials}],
            },
            indent=1,
        )
    )
    return path
