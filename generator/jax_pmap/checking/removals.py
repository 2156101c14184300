"""What parallel code uses and jax removed, renamed or deprecated, each with its version and its cure.

The versions are those of the changelog (https://docs.jax.dev/en/latest/changelog.html); a test holds the rows
against the jax that is installed.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Removal:
    """A name, parameter or option of jax, and until when it works."""

    #: ``"jax.device_put_replicated"``; a module stands for all that is in it.
    name: str
    #: The version that deprecated it; empty where it went without.
    since: str
    #: The first version without it; empty while it still works.
    gone: str
    #: What to do instead.
    cure: str
    #: A name that is a drop-in replacement, if there is one.
    same: str = ""


_PUT = "place a copy with `jax.device_put(tree, NamedSharding(mesh, PartitionSpec()))`"
_STACK = "stack the parts and place them with `jax.device_put(x, NamedSharding(mesh, PartitionSpec(axis)))`"
_NAMED = "use `jax.sharding.NamedSharding`"
_LAYOUT = "read the layout of an array from its `sharding`, a `jax.sharding.NamedSharding`"
_INTERNAL = "it was internal to jax; use the public `jax.shard_map` or `jax.jit`"
_PRIMITIVE = (
    "`pmap` is traced as `jit` of `shard_map`: match `jax.extend.core.primitives.jit_p`, and look inside"
)
_ONE_ARRAY = "there is one array type: `jax.Array`"
_MESH_KEYWORDS = "pass `mesh=`, `in_specs=` and `out_specs=` by keyword"

#: Names, by the module they were in.
NAMES = (
    # --- jax ------------------------------------------------------------------------------
    Removal("jax.device_put_replicated", "0.8.1", "0.10", _PUT),
    Removal("jax.device_put_sharded", "0.8.1", "0.10", _STACK),
    Removal("jax.soft_pmap", "", "0.3.18", "use `jax.pmap` of a `jax.vmap`"),
    Removal("jax.host_count", "0.2.13", "", "use `jax.process_count`", "jax.process_count"),
    Removal("jax.host_id", "0.2.13", "", "use `jax.process_index`", "jax.process_index"),
    Removal("jax.tree_map", "0.4.26", "0.6", "use `jax.tree.map`", "jax.tree.map"),
    Removal("jax.tree_multimap", "", "0.3.16", "use `jax.tree.map`", "jax.tree.map"),
    Removal("jax.tree_util.tree_multimap", "", "0.3.16", "use `jax.tree.map`", "jax.tree.map"),
    Removal("jax.config.config", "", "0.4.25", "use `jax.config`", "jax.config"),
    # --- jax.sharding ---------------------------------------------------------------------
    Removal("jax.sharding.PmapSharding", "0.8.1", "0.10", _NAMED),
    Removal("jax.sharding.PositionalSharding", "0.6", "0.7", _NAMED),
    Removal("jax.sharding.GSPMDSharding", "0.6", "0.7", _NAMED),
    Removal("jax.sharding.use_mesh", "", "0.7.1", "use `jax.set_mesh`", "jax.set_mesh"),
    # --- jax.lax --------------------------------------------------------------------------
    Removal("jax.lax.pvary", "0.8.2", "0.10", 'use `jax.lax.pcast(x, axis_name, to="varying")`'),
    Removal("jax.lax.pdot", "", "0.6", "use `jax.lax.psum` of a `jax.numpy.dot`"),
    Removal("jax.lax.xeinsum", "", "0.6", "use `jax.lax.psum` of a `jax.numpy.einsum`"),
    Removal("jax.lax.infeed", "0.6", "0.7", "hand the data to the function as an argument"),
    Removal("jax.lax.outfeed", "0.6", "0.7", "use `jax.experimental.io_callback`"),
    # --- jax.core -------------------------------------------------------------------------
    Removal("jax.core.axis_frame", "", "0.7", "use `jax.lax.axis_size(axis_name)`"),
    Removal("jax.core.AxisName", "", "0.7", "use `Hashable`, which it was"),
    Removal("jax.core.mapped_aval", "0.8.2", "0.10", _INTERNAL),
    Removal("jax.core.unmapped_aval", "0.8.2", "0.10", _INTERNAL),
    Removal(
        "jax.core.nonempty_axis_env_DO_NOT_USE", "0.10", "0.11", "pass the axis name, or None, as an argument"
    ),
    Removal(
        "jax.core.unsafe_get_axis_names_DO_NOT_USE",
        "0.10",
        "0.11",
        "pass the axis name, or None, as an argument",
    ),
    # --- jax.interpreters -----------------------------------------------------------------
    Removal("jax.interpreters.pxla.xla_pmap_p", "0.8.2", "0.10", _PRIMITIVE),
    *(
        Removal(f"jax.interpreters.pxla.{name}", "0.8.2", "0.10", cure)
        for name, cure in {
            "MapTracer": _INTERNAL,
            "PmapExecutable": _INTERNAL,
            "parallel_callable": _INTERNAL,
            "shard_args": "use `jax.device_put` with a `NamedSharding`",
            "ShardingSpec": _LAYOUT,
            "Chunked": _LAYOUT,
            "NoSharding": _LAYOUT,
            "Replicated": _LAYOUT,
            "ShardedAxis": _LAYOUT,
            "Unstacked": _LAYOUT,
            "spec_to_indices": "use `sharding.devices_indices_map(shape)`",
        }.items()
    ),
    *(
        Removal(f"jax.interpreters.pxla.{name}", "0.8.2", "0.11", cure)
        for name, cure in {
            "Index": "use `tuple[slice, ...]`, which it was",
            "MeshAxisName": "use `Hashable`, which it was",
            "ArrayMapping": _INTERNAL,
            "MeshExecutable": _INTERNAL,
            "array_mapping_to_axis_resources": _INTERNAL,
            "global_aval_to_result_handler": _INTERNAL,
            "global_result_handlers": _INTERNAL,
            "op_sharding_to_indices": "use `sharding.devices_indices_map(shape)`",
        }.items()
    ),
    Removal(
        "jax.interpreters.pxla.are_op_shardings_equal", "", "0.7", "compare with `sharding.is_equivalent_to`"
    ),
    Removal(
        "jax.interpreters.pxla.is_op_sharding_replicated", "", "0.7", "use `sharding.is_fully_replicated`"
    ),
    Removal(
        "jax.interpreters.pxla.thread_resources",
        "0.8.2",
        "",
        "set the mesh with `jax.set_mesh`, and ask `jax.sharding.get_abstract_mesh()`",
    ),
    Removal("jax.interpreters.pxla.MeshComputation", "0.8.2", "", _INTERNAL),
    Removal(
        "jax.interpreters.pxla.PartitionSpec",
        "",
        "0.4.11",
        "use `jax.sharding.PartitionSpec`",
        "jax.sharding.PartitionSpec",
    ),
    Removal("jax.interpreters.pxla.Mesh", "", "0.4.11", "use `jax.sharding.Mesh`", "jax.sharding.Mesh"),
    Removal("jax.interpreters.pxla.ShardedDeviceArray", "", "0.4.14", _ONE_ARRAY),
    Removal("jax.interpreters.xla.DeviceArray", "", "0.4.11", _ONE_ARRAY, "jax.Array"),
    Removal("jax.interpreters.sharded_jit", "", "0.5", "use `jax.jit` with `in_shardings`"),
    Removal("jax.interpreters.mlir.ReplicaAxisContext", "", "0.10", _INTERNAL),
    Removal("jax.extend.core.primitives.xla_pmap_p", "", "0.10", _PRIMITIVE),
    Removal(
        "jax.extend.core.primitives.pjit_p",
        "",
        "0.7",
        "it is called `jit_p` now",
    ),
    # --- jax.experimental -----------------------------------------------------------------
    Removal(
        "jax.experimental.shard_map.shard_map",
        "0.8",
        "",
        f"use `jax.shard_map`: `check_rep` is called `check_vma` there; {_MESH_KEYWORDS}",
    ),
    Removal(
        "jax.experimental.pjit.pjit",
        "0.8",
        "",
        "use `jax.jit`, with `NamedSharding(mesh, spec)` for the specs",
    ),
    Removal("jax.experimental.pjit.pjit_p", "", "0.7", "use `jax.extend.core.primitives.jit_p`"),
    Removal("jax.experimental.pjit.AUTO", "", "0.10", "leave `in_shardings` out"),
    Removal(
        "jax.experimental.pjit.with_sharding_constraint",
        "",
        "0.6",
        "use `jax.lax.with_sharding_constraint`",
        "jax.lax.with_sharding_constraint",
    ),
    Removal(
        "jax.experimental.pjit.PartitionSpec",
        "",
        "0.6",
        "use `jax.sharding.PartitionSpec`",
        "jax.sharding.PartitionSpec",
    ),
    Removal("jax.experimental.pjit.FROM_GDA", "", "0.4.11", "leave it out: a `jax.Array` knows its sharding"),
    Removal(
        "jax.experimental.shard.reshard", "", "0.7", "use `jax.sharding.reshard`", "jax.sharding.reshard"
    ),
    Removal(
        "jax.experimental.shard.auto_axes",
        "",
        "0.7",
        "use `jax.sharding.auto_axes`",
        "jax.sharding.auto_axes",
    ),
    Removal(
        "jax.experimental.shard.explicit_axes",
        "",
        "0.7",
        "use `jax.sharding.explicit_axes`",
        "jax.sharding.explicit_axes",
    ),
    Removal("jax.experimental.maps.Mesh", "", "0.4.31", "use `jax.sharding.Mesh`", "jax.sharding.Mesh"),
    Removal("jax.experimental.maps.xmap", "", "0.4.31", "use `jax.shard_map`"),
    Removal("jax.experimental.maps", "", "0.4.31", "use `jax.shard_map` and `jax.sharding.Mesh`"),
    Removal(
        "jax.experimental.PartitionSpec",
        "",
        "0.4.11",
        "use `jax.sharding.PartitionSpec`",
        "jax.sharding.PartitionSpec",
    ),
    Removal("jax.experimental.global_device_array", "", "0.5", "use `jax.make_array_from_callback`"),
    Removal("jax.experimental.gda_serialization", "", "0.5", "use `jax.experimental.array_serialization`"),
    Removal(
        "jax.experimental.host_callback",
        "0.4.26",
        "0.8",
        "use `jax.experimental.io_callback` or `jax.debug.callback`",
    ),
    Removal(
        "jax.experimental.layout.DeviceLocalLayout",
        "",
        "0.7",
        "it is called `jax.experimental.layout.Layout` now",
    ),
    # --- jax.lib --------------------------------------------------------------------------
    Removal(
        "jax.lib.xla_bridge.get_backend",
        "",
        "0.8",
        "use `jax.extend.backend.get_backend`, or `jax.default_backend()` for its name",
    ),
    *(
        Removal(f"jax.lib.xla_bridge.{name}", "", "0.5", f"use `jax.{name}`", f"jax.{name}")
        for name in (
            "device_count",
            "local_device_count",
            "devices",
            "local_devices",
            "process_index",
            "process_count",
        )
    ),
    Removal("jax.lib.xla_extension.PmapFunction", "0.6", "0.8", _INTERNAL),
    Removal("jax.lib.xla_extension.pmap_lib", "0.6", "0.7", _INTERNAL),
)
#: Keyword parameters, as ``function(parameter)``; what is gone from `jax.shard_map` it never had.
PARAMETERS = (
    Removal("jax.shard_map(check_rep)", "", "0.6", "it is called `check_vma`", "check_vma"),
    Removal("jax.shard_map(auto)", "", "0.6", "name the other axes, the manual ones, in `axis_names`"),
    Removal(
        "jax.experimental.shard_map.shard_map(check_vma)", "", "0.6", "use `jax.shard_map`, which has it"
    ),
    Removal(
        "jax.experimental.shard_map.shard_map(axis_names)", "", "0.6", "use `jax.shard_map`, which has it"
    ),
    Removal("jax.experimental.shard_map.shard_map(auto)", "", "0.8", "use `jax.shard_map` with `axis_names`"),
    Removal(
        "jax.experimental.pjit.pjit(in_axis_resources)", "", "0.4.14", "use `jax.jit` with `in_shardings`"
    ),
    Removal(
        "jax.experimental.pjit.pjit(out_axis_resources)", "", "0.4.14", "use `jax.jit` with `out_shardings`"
    ),
    Removal("jax.pmap(global_arg_shapes)", "", "0.10", "leave it out"),
    Removal(
        "jax.ShapeDtypeStruct(vma)",
        "",
        "0.10",
        "use `manual_axis_type=jax.sharding.ManualAxisType(varying=…)`",
    ),
)
#: What a function takes by keyword alone, where the one that it replaces did not.
BY_KEYWORD = Removal("jax.shard_map", "", "0.6", _MESH_KEYWORDS)
#: Attributes of what a function returns.
ATTRIBUTES = (Removal("jax.typeof().vma", "", "0.10", "use `jax.typeof(x).manual_axis_type.varying`"),)
#: Options of `jax.config`.
OPTIONS = (
    Removal("jax_pmap_shmap_merge", "0.9", "0.10", "leave it out: `pmap` is always `jit` of `shard_map`"),
    Removal("jax_pmap_no_rank_reduction", "0.7.2", "0.9", "leave it out: shards keep the rank of the whole"),
    Removal("jax_eager_pmap", "", "0.6", "leave it out; `jax_disable_jit` runs operation by operation"),
    Removal(
        "jax_cpu_enable_gloo_collectives",
        "",
        "0.8",
        'set `jax_cpu_collectives_implementation` to "gloo", its default',
    ),
    Removal("jax_array", "", "0.4.14", f"leave it out: {_ONE_ARRAY}"),
    Removal("jax_parallel_functions_output_gda", "", "0.5", f"leave it out: {_ONE_ARRAY}"),
    Removal("jax_spmd_mode", "", "0.6", "leave it out"),
    Removal("jax_enable_memories", "", "0.5", "leave it out: it is always on"),
    Removal("experimental_xmap_spmd_lowering", "", "0.5", "leave it out, and use `jax.shard_map`"),
)
#: The mesh as a context manager, which no name stands for.
WITH_MESH = Removal("with mesh:", "0.10.1", "", "use `with jax.set_mesh(mesh):`")
