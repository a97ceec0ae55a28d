"""Makes a checkpoint of staged leaves: the commit by Orbax, the configuration and the receipt."""

import os
from typing import Any

from converter.checkpoints import (
    CONFIG_NAME,
    Commit,
    Committer,
    Origin,
    StagedLeaf,
    config_yaml,
    leaf_key,
    metadata_entry,
    whole_config,
    write_receipt,
)
from converter.conversion.conversion import Conversion
from converter.conversion.stream import Written
from converter.conversion.work_area import Work, conversion_digest
from converter.mapping import MODEL, TRAINING, training_keys
from converter.planning import Plan
from converter.storage import storage_of, write_error
from converter.version import __version__


def finish(conversion: Conversion, stage: Work, written: Written, committer: Committer) -> None:
    """Lets Orbax commit the staged leaves, adds the configuration, and makes all of it durable."""
    plan = conversion.plan
    records = stage.finish_leaves(plan.leaves, written.digests)
    table = conversion.source.match.table
    states = table.states(plan.options.table)
    entry = metadata_entry(
        records,
        fits={name: states[name] for name in table.fits},
        options={name: on for name, on in states.items() if name not in table.fits},
        settings={**plan.configuration.read, **plan.settings},
        tree=plan.tree,
        state=_state_record(plan),
    )
    leaves = tuple(
        StagedLeaf(leaf.path, leaf_key(leaf.path), stage.leaf_directory(leaf), leaf.shape, leaf.dtype)
        for leaf in plan.leaves
    )
    scan_layers = bool(plan.config["scan_layers"])
    optimizer = plan.state.optimizer if plan.state is not None else None
    committer.commit(
        Commit(
            output=stage.output,
            store=plan.options.store,
            leaves=leaves,
            custom_metadata={"scan_layers": scan_layers, **entry},
            step=plan.step_directory,
            lists=optimizer.lists if optimizer is not None else (),
            empty=optimizer.empty if optimizer is not None else (),
            chunks_elsewhere=not storage_of(conversion.destination).renames,
        )
    )
    text = config_yaml(
        plan.config,
        _comment(conversion),
        plan.settings,
        origins=plan.configuration.origins,
        comments=plan.configuration.comments,
        patches=conversion.patches,
        step=plan.step_directory,
    )
    try:
        storage = storage_of(stage.output)
        storage.write(os.path.join(stage.output, CONFIG_NAME), text.encode())
        write_receipt(stage.output, _origin(conversion))
        storage.flush(stage.output)
    except OSError as error:
        raise write_error(os.fspath(error.filename or stage.output), error) from None


def _origin(conversion: Conversion) -> Origin:
    plan, table = conversion.plan, conversion.source.match.table
    options = {
        **table.states(plan.options.table),
        "store": plan.options.store,
        "compress": plan.options.compressor,
        "set": dict(plan.settings),
        "tree": plan.tree,
        "layout": plan.options.layout,
        "dtype": plan.options.dtype,
        "state": _state_record(plan),
    }
    training = training_keys(table)
    whole = whole_config(plan.config)
    config = {
        MODEL: {key: value for key, value in whole.items() if key not in training},
        TRAINING: {key: value for key, value in whole.items() if key in training},
    }
    return Origin(
        f"ax2mt {__version__}",
        plan.source,
        plan.step,
        plan.table,
        plan.table_digest,
        options,
        config,
        conversion.patches,
        conversion_digest(conversion.journal),
    )


def _state_record(plan: Plan) -> dict[str, Any] | None:
    """What the checkpoint says about the training state that it holds; None where it holds none."""
    if plan.state is None:
        return None
    return {"optimizer": plan.state.optimizer.name, "leaves": {scalar.path: scalar.value for _, scalar in plan.scalars}}


def _comment(conversion: Conversion) -> str:
    """The first line of maxtext.yml."""
    step = conversion.plan.step
    shown = step if step is not None else "unknown"
    return f"Converted from AXLearn step {shown} with mapping '{conversion.plan.table}'."
