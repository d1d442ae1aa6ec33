"""`htaf completion`: verbs, flags and their values by the tabulator key.

tyro's own scripts start Python at each key, offer no files for RUN, and are too long for fish.
"""

from __future__ import annotations

import pkgutil
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from htaf._console import print_json, say
from htaf.cli.flags import Json, registry
from htaf.cli.verbs import known

Flags = dict[str, list[str]]  # of a verb, with the values of each; none: files
BASH = """_htaf() {
  local typed="${COMP_WORDS[*]:1:$((COMP_CWORD-1))} " now="${COMP_WORDS[COMP_CWORD]}" words="" flags=""
  case "$typed" in
%s
  esac
  [[ "$now" == -* ]] && words="$flags"
  COMPREPLY=($(compgen -W "$words" -- "$now"))
}
complete -o bashdefault -o default -F _htaf htaf"""
ZSH = "autoload -U +X compinit bashcompinit\n(( $+functions[compdef] )) || compinit\nbashcompinit\n"
FISH = """complete -c htaf -e
function __htaf
  string match -q -- "$argv" (string join -- ' ' (commandline -opc))
end"""


def completion(
    shell: Annotated[Positional[Literal["bash", "fish", "zsh"]], arg(help="Which shell.")], *, json: Json = False
) -> None:
    """Print a script with which a shell completes verbs and flags."""
    groups, verbs = known()
    words = {"": list(dict.fromkeys(verb.split()[0] for verb in verbs))}
    words |= {group: [verb.split()[1] for verb in verbs if verb.split()[0] == group] for group in groups}
    flags = {verb: _flags(verbs[verb].function) for verb in verbs}
    script = _fish(words, flags) if shell == "fish" else (ZSH if shell == "zsh" else "") + _bash(words, flags)
    print_json({"shell": shell, "script": script}) if json else say(script)


def _flags(function: str) -> Flags:
    """The flags of a verb, from the parser that tyro makes of its function."""
    from tyro.extras import get_parser

    parser = get_parser(pkgutil.resolve_name(function), registry=registry)
    return {
        flag: [*map(str, action.choices or ())]
        for flag, action in parser._option_string_actions.items()
        if flag.startswith("--") and flag != "--help"
    }


def _bash(words: dict[str, list[str]], flags: dict[str, Flags]) -> str:
    lines = [f'    "{group} ") words="{" ".join(names)}" ;;' for group, names in words.items()]
    for verb, of in flags.items():
        lines += [f'    "{verb}"*" {flag} ") words="{" ".join(c)}" ;;' for flag, c in of.items() if c]
        lines.append(f'    "{verb} "*) flags="{" ".join(of)}" ;;')
    return BASH % "\n".join(lines)


def _fish(words: dict[str, list[str]], flags: dict[str, Flags]) -> str:
    lines = [FISH]
    for group, names in words.items():
        before = f"htaf {group}".strip()
        lines.append(f"complete -c htaf -f -n '__htaf \"{before}\"' -a '{' '.join(names)}'")
    for verb, of in flags.items():
        for flag, values in of.items():
            of_flag = f" -x -a '{' '.join(values)}'" if values else ""
            lines.append(f"complete -c htaf -n '__htaf \"htaf {verb}*\"' -l {flag[2:]}{of_flag}")
    return "\n".join(lines)
