"""``tessera completion``: the script that teaches a shell to complete our command lines."""

from typing import Final

import click
from click.shell_completion import BashComplete, FishComplete, ShellComplete, ZshComplete

from tessera.cli.exits import Exit

_SHELLS: Final[dict[str, type[ShellComplete]]] = {
    "bash": BashComplete,
    "zsh": ZshComplete,
    "fish": FishComplete,
}

_EPILOG: Final = """\b
Install it for good:
  bash   tessera completion bash > ~/.local/share/bash-completion/completions/tessera
  zsh    tessera completion zsh > ~/.zfunc/_tessera
         and in ~/.zshrc, before compinit:  fpath+=~/.zfunc
  fish   tessera completion fish > ~/.config/fish/completions/tessera.fish

\b
Try it in the running shell:
  eval "$(tessera completion bash)"
  eval "$(tessera completion zsh)"
  tessera completion fish | source
"""


@click.command(epilog=_EPILOG)
@click.argument("shell", type=click.Choice(tuple(_SHELLS)))
@click.pass_context
def command(ctx: click.Context, shell: str) -> int:
    """Print the completion script of SHELL on standard output.

    Completes verbs and options, and their values: fleets, device models, policies, files.
    """
    script = _SHELLS[shell](ctx.find_root().command, {}, "tessera", "_TESSERA_COMPLETE")
    # Not source(): it would start bash to ask for its version, and bash need not be here.
    click.echo(script.source_template % script.source_vars())
    return Exit.OK
