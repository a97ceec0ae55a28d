"""Says what the MaxText or the AXLearn of this environment makes of a model: leaves, shapes, dtypes, axes and flags.

    PYTHON probe.py < request.json > answer.json

It runs on the Python of the framework, which may be older than ours, and needs nothing but the framework. The model
is evaluated abstractly: no weight is allocated. Standard output carries the answer alone; what the framework prints
goes to standard error. `conformance.answers` describes and validates the answer.
"""

# The frameworks are not where this is checked.
# pyright: reportMissingImports=false

from __future__ import annotations

import contextlib
import enum
import importlib
import importlib.util
import json
import os
import platform
import sys
import tempfile
from typing import Any


class ProbeError(Exception):
    """What the user has to know; the answer then holds nothing else."""


def main() -> int:
    """Reads a request from stdin and answers it on stdout."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    own = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or os.curdir) != own]
    os.environ["JAX_PLATFORMS"] = "cpu"
    request = json.load(sys.stdin)
    try:
        answer = {"maxtext": maxtext, "axlearn": axlearn}[request["framework"]](request)
    except ProbeError as error:
        answer = {"error": str(error)}
    except ImportError as error:
        answer = {"error": f"{type(error).__name__}: {error}"}
    with answers:
        json.dump({**answer, "python": platform.python_version(), "peak_memory": peak_memory()}, answers)
    return 0


def maxtext(request: dict) -> dict:
    """The tree and the effective flags of each configuration, and those of MaxText's own model files."""
    from maxtext.configs import pyconfig, types

    known = flag_names(types.MaxTextConfig)
    directory = os.path.join(os.path.dirname(pyconfig.__file__), "models")
    files = [name for name in os.listdir(directory) if name.endswith(".yml")]
    published: dict = {name: None for name in request["published"] if f"{name}.yml" not in files}
    for name in set(request["published"]) - set(published):
        keys = maxtext_config(pyconfig, {"model_name": name}).get_keys()
        published[name] = values_of(keys, request["keys"])
    return {
        "version": version_of("maxtext"),
        "models": {name: maxtext_model(config, known, request["keys"]) for name, config in request["models"].items()},
        "published": published,
    }


def maxtext_model(config: dict, known: set, keys: list) -> dict:
    """One model: its leaves, or why MaxText cannot make it."""
    import jax
    from flax import nnx
    from maxtext.configs import pyconfig
    from maxtext.utils import maxtext_utils, model_creation_utils

    unknown = sorted(set(config) - known - {"base_config"})
    result = {"unknown": unknown, "values": {}, "leaves": [], "problem": ""}
    try:
        made = maxtext_config(pyconfig, {key: value for key, value in config.items() if key not in unknown})
        result["values"] = values_of(made.get_keys(), [*keys, *config])
        mesh = jax.sharding.Mesh(maxtext_utils.create_device_mesh(made), made.mesh_axes)
        with mesh:
            rngs = {"params": 0, "dropout": 1}
            model = nnx.eval_shape(lambda: model_creation_utils.from_config(made, mesh=mesh, rngs=nnx.Rngs(**rngs)))
        leaves = jax.tree_util.tree_flatten_with_path(
            nnx.state(model, nnx.Param), is_leaf=lambda leaf: isinstance(leaf, nnx.Variable)
        )[0]
        result["leaves"] = [maxtext_leaf(path, variable) for path, variable in leaves]
    except (Exception, SystemExit) as error:  # whatever it is, it is about this model alone
        result["problem"] = reason(error)
    return result


def maxtext_leaf(path: tuple, variable: Any) -> dict:
    """One leaf, with the names of its axes."""
    value = variable.get_value() if hasattr(variable, "get_value") else variable.value
    axes = getattr(variable, "out_sharding", None) or getattr(variable, "sharding_names", None) or ()
    return {
        "path": "/".join(str(getattr(key, "key", getattr(key, "name", key))) for key in path),
        "shape": list(value.shape),
        "dtype": str(value.dtype),
        "axes": [str(axis or "") for axis in axes],
    }


def maxtext_config(pyconfig: Any, config: dict) -> Any:
    """MaxText's configuration of some keys; those that describe a run and not the model are given here."""
    own = {"run_name": "conform", "enable_checkpointing": False, "skip_jax_distributed_system": True}
    with tempfile.TemporaryDirectory() as directory:
        file = os.path.join(directory, "maxtext.yml")
        with open(file, "w", encoding="utf-8") as out:
            json.dump({"base_config": "base.yml", **config}, out)  # JSON is YAML
        return pyconfig.initialize(["conform", file], **own)


def flag_names(config: Any) -> set:
    """The flags of a configuration class, those of the classes in it included."""
    names = set()
    for name, field in config.model_fields.items():
        names.add(name)
        if hasattr(field.annotation, "model_fields"):
            names |= flag_names(field.annotation)
    return names


def values_of(keys: dict, wanted: list) -> dict:
    """Effective values as JSON has them; keys that there are not are left out."""
    return {key: plain(keys[key]) for key in wanted if key in keys}


def plain(value: Any) -> Any:
    """A flag's value as JSON has it."""
    if isinstance(value, enum.Enum):
        return plain(value.value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    return str(getattr(value, "name", value))


def axlearn(request: dict) -> dict:
    """The parameter specifications of a named configuration, and the configuration itself."""
    from axlearn.common.utils import flatten_items

    config = axlearn_config(request["config"], request["trainers"])
    config.dir = config.dir or os.path.join(tempfile.gettempdir(), "conform")
    lines = config.debug_string()
    model = config.model.set(name="model").instantiate(parent=None)
    leaves = [
        {"path": f"model/{path}", "shape": list(spec.shape), "dtype": axlearn_dtype(spec), "axes": []}
        for path, spec in flatten_items(model.create_parameter_specs_recursively())
    ]
    return {"version": version_of("axlearn"), "leaves": leaves, "lines": lines}


def axlearn_dtype(spec: Any) -> str:
    """The name of a specification's dtype, which is a type or a dtype."""
    import numpy

    return numpy.dtype(spec.dtype).name


def axlearn_config(name: str, trainers: list) -> Any:
    """A trainer's configuration: NAME in one of the modules, MODULE:NAME, or FILE.py:NAME."""
    place, _, own = name.rpartition(":")
    tried = []
    for trainer in [place] if place else trainers:
        configs = trainer_module(trainer).named_trainer_configs()
        if own in configs:
            return configs[own]()
        tried.append(f"{trainer} ({len(configs)} configurations)")
    version = version_of("axlearn")
    installed = f"AXLearn {version}, which may be older than the configuration" if version else "this AXLearn"
    raise ProbeError(f"no configuration {own!r} in {', '.join(tried)} of {installed}")


def trainer_module(place: str) -> Any:
    """A module by its name, or by its file; a file of the user's may fail in any way."""
    if not place.endswith(".py"):
        with contextlib.suppress(ModuleNotFoundError):
            return importlib.import_module(place)
        return importlib.import_module(f"axlearn.experiments.{place}")
    spec = importlib.util.spec_from_file_location("trainer_config_file", place)
    if spec is None or spec.loader is None or not os.path.isfile(place):
        raise ProbeError(f"{place}: no such file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def peak_memory() -> int:
    """The largest resident set of this process, in bytes; Linux counts in KiB, macOS in bytes."""
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def version_of(package: str) -> str:
    """The installed version; empty for a source tree that is only on the path."""
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def reason(error: BaseException) -> str:
    """The first line of an error that says something; MaxText ends the process where a configuration is wrong."""
    if isinstance(error, SystemExit) and error.__context__ is not None:
        error = error.__context__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0]}"[:1000] if lines else type(error).__name__


if __name__ == "__main__":
    sys.exit(main())
