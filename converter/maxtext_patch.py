"""Makes MaxText apply the q/k norms after RoPE, as AXLearn does, at run time and without touching its files.

    python -m converter.maxtext_patch maxtext.trainers.pre_train.train CONFIG ...

runs a MaxText module with the patch, for the decoder block that the configuration or a `decoder_block=` argument names;
`import converter.maxtext_patch; converter.maxtext_patch.apply()`, before a model is built, does the same from code, for
the decoder blocks of BLOCKS. Models with other blocks do not change. Weights are those of
`convert --qk-norm plain`. Why this is needed, and the change to MaxText that would replace it: docs/maxtext.md.

Made for MaxText 0.2.5. Other versions below 0.3 are taken if the code in question has the same structure; anything else
is refused. Needs nothing but MaxText.
"""

import ast
import importlib
import importlib.metadata
import inspect
import re
import runpy
import sys
import textwrap
from collections.abc import Callable, Sequence
from types import ModuleType

VERSIONS = (0, 2, 5), (0, 3)
"""First version, and the first that is not taken."""

MODULE = "maxtext.layers.attentions"

NORM_TEST = "(self.use_qk_norm and not is_llama4_decoder_block) or self.is_qwen3_hybrid"
NORM_BODY = """
query = self.query_norm(query)
if not use_shared_kv:
    key = self.key_norm(key)
"""
ROPE_TEST = "use_rope"
ROPE_BODY = """
query = self.apply_rotary_embedding(query, inputs_positions=inputs_positions, rope_kwargs=rope_kwargs)
if not use_shared_kv:
    key = self.apply_rotary_embedding(key, inputs_positions=inputs_positions, rope_kwargs=rope_kwargs)
"""
BLOCKS = ("ENVY",)
"""The decoder blocks that change where none is named, as MaxText's DecoderBlockType calls them."""

_MARK = "norms_after_rope"


class PatchError(RuntimeError):
    """MaxText is missing, or its code is not what the patch was made for; nothing was changed."""


def apply(blocks: Sequence[str] = BLOCKS) -> str:
    """Patches the installed MaxText; once is enough, a second time does nothing.

    Args:
      blocks: names of the decoder blocks that change, members of MaxText's DecoderBlockType.

    Returns:
      The version of MaxText.

    Raises:
      PatchError: there is no MaxText, its version is out of range, its attention has another structure, or other
        blocks were patched before.
    """
    version = _version()
    try:
        module = importlib.import_module(MODULE)
    except ImportError as error:
        raise PatchError(f"MaxText {version}: {MODULE} cannot be imported: {error}") from None
    attention = getattr(module, "Attention", None)
    if attention is None:
        raise PatchError(f"MaxText {version}: {MODULE} has no Attention; {_advice()}")
    unknown = [block for block in blocks if not hasattr(getattr(module, "DecoderBlockType", None), block)]
    if unknown:
        raise PatchError(f"MaxText {version}: {MODULE} knows no decoder block {', '.join(unknown)}; {_advice()}")
    done = getattr(attention.__call__, _MARK, None)
    if done is None:
        attention.__call__ = _patched(attention.__call__, module, version, tuple(blocks))
    elif set(done) != set(blocks):
        raise PatchError(f"MaxText {version} is already patched for {', '.join(done)}; apply the patch once")
    return version


def patch_source(source: str, blocks: Sequence[str] = BLOCKS) -> ast.Module:
    """Moves the q/k norms behind RoPE for some decoder blocks in the source of MaxText's attention method.

    Args:
      source: the method's source, not indented.
      blocks: names of the decoder blocks.

    Raises:
      PatchError: the two places are not there exactly once each, or something between them changes q or k.
    """
    tree = ast.parse(source)
    body = tree.body[0].body if len(tree.body) == 1 and isinstance(tree.body[0], ast.FunctionDef) else []
    norm = _find(body, NORM_TEST, NORM_BODY, "the q/k norm")
    rope = _find(body, ROPE_TEST, ROPE_BODY, "RoPE")
    if not norm < rope or {"query", "key"} & set().union(*map(_assigned, body[norm + 1 : rope])):
        raise PatchError(f"something between the q/k norm and RoPE changes q or k; {_advice()}")
    block_test = f"self.config.decoder_block in ({', '.join(f'DecoderBlockType.{block}' for block in blocks)},)"
    before, after = (
        ast.parse(f"if ({NORM_TEST}) and {mark}({block_test}):\n{textwrap.indent(NORM_BODY.strip(), '    ')}").body[0]
        for mark in ("not ", "")
    )
    for statement, place in ((before, norm), (after, rope)):
        for node in ast.walk(statement):
            ast.copy_location(node, body[place])
    body[norm] = before
    body.insert(rope + 1, after)
    return tree


def _patched(method: Callable, module: ModuleType, version: str, blocks: tuple[str, ...]) -> Callable:
    try:
        lines, first = inspect.getsourcelines(method)
    except (OSError, TypeError):
        raise PatchError(f"MaxText {version}: the source of its attention cannot be read; {_advice()}") from None
    if inspect.unwrap(method) is not method or method.__closure__:
        raise PatchError(f"MaxText {version}: its attention is wrapped by something else; {_advice()}")
    try:
        tree = patch_source(textwrap.dedent("".join(lines)), blocks)
    except PatchError as error:
        raise PatchError(f"MaxText {version}: {error}") from None
    ast.increment_lineno(tree, first - 1)
    names: dict[str, Callable] = {}
    exec(compile(tree, method.__code__.co_filename, "exec"), module.__dict__, names)
    result = names[method.__name__]
    result.__qualname__ = method.__qualname__
    setattr(result, _MARK, blocks)
    return result


def _find(body: Sequence[ast.stmt], test: str, content: str, what: str) -> int:
    """The one statement `if test: content` of a function's body."""
    wanted = ast.dump(ast.parse(f"if {test}:\n{textwrap.indent(content.strip(), '    ')}").body[0])
    found = [number for number, statement in enumerate(body) if ast.dump(statement) == wanted]
    if len(found) != 1:
        raise PatchError(f"{what} is expected once in the attention's code, found {len(found)} times; {_advice()}")
    return found[0]


def _assigned(statement: ast.stmt) -> set[str]:
    return {node.id for node in ast.walk(statement) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}


def _version() -> str:
    try:
        version = importlib.metadata.version("maxtext")
    except importlib.metadata.PackageNotFoundError:
        raise PatchError("MaxText is not installed in this environment") from None
    numbers = re.match(r"\d+(\.\d+)*", version)
    parsed = tuple(int(part) for part in numbers[0].split(".")) if numbers else ()
    if not VERSIONS[0] <= parsed < VERSIONS[1]:
        raise PatchError(f"MaxText {version} is installed; the patch supports 0.2.5 up to, but not including, 0.3")
    return version


def _advice() -> str:
    return "use MaxText 0.2.5, or convert with --qk-norm fit and run without the patch"


def configured_blocks(arguments: Sequence[str]) -> Sequence[str]:
    """The decoder block of a MaxText command; BLOCKS where neither its arguments nor its configuration names one.

    Args:
      arguments: as MaxText gets them: the configuration, then `KEY=VALUE`.

    Raises:
      PatchError: the configuration cannot be read.
    """
    lines = [argument for argument in arguments if argument.startswith("decoder_block=")]
    config = next((argument for argument in arguments if argument.endswith((".yml", ".yaml"))), None)
    if not lines and config is not None:
        try:
            with open(config, encoding="utf-8") as file:
                lines = file.read().splitlines()
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", None) or error
            raise PatchError(f"{config}: cannot be read: {why}; name the block with decoder_block=NAME") from None
    found = [match[1] for line in lines if (match := re.match(r"decoder_block\s*[:=]\s*[\"']?(\w+)", line))]
    return (found[-1].upper(),) if found else BLOCKS


def main(arguments: Sequence[str]) -> int:
    """Patches MaxText and runs one of its modules as a program."""
    if not arguments or arguments[0].startswith("-"):
        print("usage: python -m converter.maxtext_patch MODULE [ARGUMENT ...]", file=sys.stderr)
        return 2
    try:
        _version()  # without MaxText nothing else matters
        blocks = configured_blocks(arguments[1:])
        version = apply(blocks)
    except PatchError as error:
        print(f"maxtext_patch: {error}", file=sys.stderr)
        return 1
    names = ", ".join(block.lower() for block in blocks)
    print(f"maxtext_patch: MaxText {version} norms q and k after RoPE (decoder block {names})", file=sys.stderr)
    sys.argv = list(arguments)
    runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
