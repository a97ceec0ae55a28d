"""The patch `scaled_updates`: MaxText's AdamW scales the updates of some parameters, as muP in AXLearn does.

AXLearn: p -= schedule * (peak * scale * adam + decay * p), so the scale is between Adam and the weight decay
(axlearn/common/optimizers.py, `adamw_decoupled_optimizer`). In optax.adamw that is the place of the second of three
transforms, which adds the decay. It takes the scale too, so that the state stays the one of optax.adamw.
"""

import ast
import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from converter.maxtext_patch.leaves import scales
from converter.maxtext_patch.source import (
    Change,
    PatchError,
    UsageError,
    find,
    function_body,
    other_code,
    read_code,
    statement,
)

MODULE = "maxtext.optimizers.optimizers"
OPTAX = "optax._src.alias"

ADAMW = """
base_opt = {adamw}(
    learning_rate_schedule,
    b1=config.adam_b1,
    b2=config.adam_b2,
    eps=config.adam_eps,
    eps_root=config.adam_eps_root,
    weight_decay=config.adam_weight_decay,
    mu_dtype=config.mu_dtype,
    mask=get_adamw_mask(config),
)
"""
WRAPPERS = """
if getattr(config, "skip_step_on_spikes", False):
    base_opt = skip_step_on_spikes(
        base_opt,
        interval=config.skip_step_interval,
        scaling_factor=config.skip_step_scaling_factor,
    )
trainable_patterns = getattr(config, "trainable_parameters_mask", None)
freeze_mask_fn = _get_path_mask_fn(trainable_patterns, match_returns_true=False)
if freeze_mask_fn is not None:
    return optax.multi_transform(
        {"trainable": base_opt, "frozen": optax.set_to_zero()},
        lambda params: jax.tree_util.tree_map(lambda x: "frozen" if x else "trainable", freeze_mask_fn(params)),
    )
return base_opt
"""
"""What follows the choice of the optimizer; with all of it the scale stays right."""

CHAIN = """
return combine.chain(
    transform.scale_by_adam(b1=b1, b2=b2, eps=eps, eps_root=eps_root, mu_dtype=mu_dtype, nesterov=nesterov),
    {decay},
    transform.scale_by_learning_rate(learning_rate),
)
"""
DECAY = "transform.add_decayed_weights(weight_decay, mask)"

OWN_OPTIMIZERS = ("maxtext.trainers.post_train.rl",)
"""Trainers that do not ask MaxText's `get_optimizer`."""


@dataclass(frozen=True, kw_only=True)
class ScaledUpdates:
    """Multiplies the Adam updates of some parameters; the weight decay is not scaled.

    Attributes:
      leaves: the scale of each parameter, by its path in MaxText's tree; `*` stands for one part of a path. All other
        parameters have scale 1.
    """

    name: ClassVar[str] = "scaled_updates"
    leaves: Mapping[str, float]

    def __str__(self) -> str:
        values = ", ".join(f"{value:g}" for value in sorted(set(self.leaves.values())))
        return f"scales the Adam updates of the parameters under {len(self.leaves)} paths by {values}"

    def unneeded(self, settings: Mapping[str, str]) -> str | None:
        """The setting with which there is nothing to patch: none.

        Raises:
          UsageError: the run has another optimizer than the patch works with.
        """
        kind = settings.get("opt_type", "adamw")
        if kind != "adamw":
            raise UsageError(f"{self.name} works with opt_type=adamw, found opt_type={kind}; {_without()}")
        module = settings.get("module", "")
        if any(module == name or module.startswith(f"{name}.") for name in OWN_OPTIMIZERS):
            raise UsageError(f"{self.name} does not reach the optimizer of {module}; {_without()}")
        return None

    def prepare(self) -> Change:
        """Checks MaxText's `get_optimizer` and optax.adamw; returns the change.

        Raises:
          PatchError: one of them has another structure, or was patched for other scales before.
        """
        code = read_code(MODULE, "get_optimizer", "MaxText's optimizer")
        if code.done is not None:
            if code.done != dict(self.leaves):
                raise PatchError("already patched for other scales; apply the patch once")
            return lambda: None
        patch_optimizer(code.tree)
        names = {"ax2mt_adamw": scaled_adamw(self.leaves), "ax2mt_only_adamw": only_adamw}
        return code.replaced(dict(self.leaves), names)


def patch_optimizer(tree: ast.Module) -> None:
    """Puts our AdamW in the place of optax's, in the source of MaxText's `get_optimizer`.

    Args:
      tree: the function; changed in place.

    Raises:
      PatchError: AdamW is not made exactly once and as expected, or something else is done with it.
    """
    body, where = function_body(tree), "get_optimizer"
    wrappers = ast.parse(WRAPPERS).body
    choice = [node for node in body[: -len(wrappers)] if not _is_text(node)]
    if [ast.dump(node) for node in body[-len(wrappers) :]] != [ast.dump(node) for node in wrappers]:
        raise other_code(f"{where} does something else with the optimizer than expected")
    first = choice[0] if len(choice) == 1 else None
    if not isinstance(first, ast.If) or ast.unparse(first.test) != "config.opt_type == 'adamw'":
        raise other_code(f"{where} is expected to begin with the choice of adamw")
    place = find(first.body, ADAMW.format(adamw="optax.adamw"), "the call of optax.adamw", where)
    if len(first.body) != 1:
        raise other_code(f"{where} does more than call optax.adamw")
    first.body[place] = statement(ADAMW.format(adamw="ax2mt_adamw"), first.body[place])
    body.insert(body.index(first), statement("ax2mt_only_adamw(config.opt_type)", first))


def scaled_adamw(leaves: Mapping[str, float]) -> Callable[..., Any]:
    """optax.adamw with scales between Adam and the weight decay; optax itself does not change.

    Args:
      leaves: as in ScaledUpdates.

    Raises:
      PatchError: optax.adamw is not the chain of three transforms that is expected.
    """
    code = read_code(OPTAX, "adamw", "optax.adamw")
    place = find(
        code.body, CHAIN.format(decay=DECAY), "the chain of Adam, weight decay and learning rate", "optax.adamw"
    )
    code.body[place] = statement(CHAIN.format(decay=f"ax2mt_scaled({DECAY})"), code.body[place])
    names = vars(importlib.import_module(OPTAX))
    return code.compiled({**names, "ax2mt_scaled": lambda decay: _scaled(decay, leaves)})


def only_adamw(kind: Any) -> None:
    """Refuses other optimizers, whatever part of MaxText's configuration chose them."""
    kind = getattr(kind, "value", kind)
    if kind != "adamw":
        raise PatchError(f"scaled_updates works with opt_type=adamw, found opt_type={kind}; {_without()}")


def _scaled(decay: Any, leaves: Mapping[str, float]) -> Any:
    """The transform that adds the weight decay, with the updates scaled before; of the same type and state."""
    import jax

    def init(params: Any) -> Any:
        scales(params, leaves)
        return decay.init(params)

    def update(updates: Any, state: Any, params: Any = None, **extra: Any) -> tuple[Any, Any]:
        found = iter(scales(updates, leaves))
        scaled = jax.tree.map(lambda value: value if (scale := next(found)) == 1 else value * scale, updates)
        return decay.update(scaled, state, params, **extra)

    return decay._replace(init=init, update=update)


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _without() -> str:
    return "use adamw, or --without scaled_updates, which is not exact"
