"""What an API server refuses to show, as an error that says which right is missing and how to check it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from tessera.core.errors import UnavailableError
from tessera.runtime.kube.port import ApiError, ConnectionLostError, Kind
from tessera.wire.kube.names import GROUP

_FORBIDDEN: Final = 403
_UNKNOWN_USER: Final = 401
_ABSENT: Final = 404


@contextmanager
def reading(verb: str, kind: Kind, namespace: str = "") -> Iterator[None]:
    """Turn what a call raises into :class:`UnavailableError`, which names verb, resource and remedy.

    A 404 of a single object stays an :class:`ApiError`: only the caller knows what its absence means.
    """
    try:
        yield
    except ConnectionLostError as error:
        raise UnavailableError(
            f"the API server does not answer ({error})", "check the address with 'kubectl cluster-info'"
        ) from error
    except ApiError as error:
        if error.code == _ABSENT and verb == "get":
            raise
        raise _refusal(error, verb, kind, namespace) from error


def _refusal(error: ApiError, verb: str, kind: Kind, namespace: str) -> UnavailableError:
    resource = f"{kind.plural}.{kind.group}" if kind.group else kind.plural
    where = f" in namespace {namespace}" if namespace else " in all namespaces" if kind.namespaced else ""
    match error.code:
        case 403:
            flag = f" -n {namespace}" if namespace else " -A" if kind.namespaced else ""
            return UnavailableError(
                f"you may not {verb} {resource}{where}",
                f"check with 'kubectl auth can-i {verb} {resource}{flag}', and ask for a role that allows it",
            )
        case 401:
            return UnavailableError(
                "the API server does not know you", "renew your credentials; check with 'kubectl auth whoami'"
            )
        case 404 if kind.group == GROUP:
            return UnavailableError(
                f"the cluster has no {resource}: Tessera is not installed on it",
                "install its chart, or name another cluster with --context; check with 'kubectl get crds'",
            )
    return UnavailableError(f"the API server did not {verb} {resource}{where} ({error})", "try again")
