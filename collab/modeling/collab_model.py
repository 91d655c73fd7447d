"""Mixins that turn a family's native model classes into collaborative ones.

A collaborative model is the native model with its attention layers replaced, as its config says. It is a class of its
own with a `model_type` of its own: under the native one, loading without ``trust_remote_code`` would silently build the
native class with random queries and keys.

This file is copied into every exported model; it imports only torch, transformers and its own folder.
"""

import inspect
import os
import shutil
import sys
from collections.abc import Container, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers import initialization as init
from transformers.dynamic_module_utils import get_relative_import_files
from transformers.models.auto import modeling_auto
from transformers.utils.output_capturing import OutputRecorder

from .collab_attention import CollaborativeAttention, OutputBias
from .collab_config import AttentionSpec
from .collab_feed_forward import FeedForward
from .collab_kernel import is_recorded
from .collab_step import compute_by_cost

if TYPE_CHECKING:
    _Model = PreTrainedModel  # for type checkers only
else:
    _Model = object


class CollaborativeMixin(_Model):
    """Mixin that gives a native model class collaborative attention.

    Comes before the native class in the bases: ``class CollabBertModel(CollaborativeBase, BertModel)``.

    Class attributes:
        base_class: the family's main model.
    """

    base_class: ClassVar[type["CollaborativeBase"]]

    _supports_sdpa = True
    # The content bias is additive or wide, and queries are wider than values: flash attention supports neither.
    _supports_flash_attn = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if not issubclass(cls, PreTrainedModel):  # a mixin itself
            return
        cls.base_class.versions[cls.native_class()] = cls
        # transformers records attentions only from layers of the classes listed here.
        recorded = getattr(cls.native_class(), "_can_record_outputs", None)
        if recorded is not None:
            cls._can_record_outputs = {key: cls._recorded(source) for key, source in recorded.items()}

    @classmethod
    def _recorded(cls, source: Any) -> Any:
        """The collaborative version of an entry of `_can_record_outputs`."""
        classes = cls.base_class.attention_classes
        if isinstance(source, OutputRecorder):
            return replace(source, target_class=classes.get(source.target_class, source.target_class))
        if isinstance(source, list):
            return [cls._recorded(entry) for entry in source]
        return classes.get(source, source)

    def __init__(self, config: Any, *args: Any, shapes: "Shapes | None" = None, **kwargs: Any) -> None:
        base, requested = self.base_class, config._attn_implementation
        if (reason := base.unsupported(config)) is not None:
            raise ValueError(f"{type(self).__name__} cannot be built from this config: {reason}.")
        if not isinstance(self, CollaborativeBase):
            # The native constructor builds native parts, which may support fewer kernels than their replacements.
            config._attn_implementation = "eager"
        super().__init__(config, *args, **kwargs)
        parts = list(outermost(self, base.versions))
        if not isinstance(self, CollaborativeBase):
            # A part chooses its kernel when it is built; a model without parts (OPT's decoder alone) chooses its own.
            chosen = requested if parts else self.get_correct_attn_implementation(requested, is_init_check=True)
            config._attn_implementation = chosen
        shapes = shapes or Shapes.of_config(self, base, config)
        for name, part in parts:
            if part.config is not config:  # a copy (T5), made while its kernel was another
                part.config._attn_implementation = config._attn_implementation
            version = base.versions[type(part)]
            self.set_submodule(name, version(part.config, shapes=shapes.inside(name), **optional_parts(part)))
        if not parts:
            shapes.apply(self, base, config)
        if self.can_generate():
            compute_by_cost(self)
        self.post_init()

    @classmethod
    def native_class(cls) -> type[PreTrainedModel]:
        """The native model class that this class is the collaborative version of."""
        # Not the first base of any kind: what shards a model puts one of its own before the others.
        natives = (base for base in cls.__mro__ if issubclass(base, PreTrainedModel))
        return next(base for base in natives if not issubclass(base, CollaborativeMixin))

    def _get_name(self) -> str:
        # By the names of native models transformers' `Trainer` knows which labels it has to shift.
        name = self.native_class().__name__
        return name if name in modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values() else super()._get_name()

    def init_continuous_batching(self, *args: Any, **kwargs: Any) -> Any:
        """Refuses continuous batching (`generate_batch`), whose cache of pages holds keys of the original's shape."""
        raise ValueError(f"{type(self).__name__} has no continuous batching. Use generate(), not generate_batch().")

    def _initialize_weights(self, module: nn.Module, is_custom_code: bool = False) -> None:
        # In custom code, transformers leaves out modules without parameters of their own, such as a concat layer, lest
        # loaded weights be overwritten; what `_init_weights` calls here leaves those alone.
        super()._initialize_weights(module)

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, OutputBias) and module.bias is not None:
            init.zeros_(module.bias)
        if isinstance(module, CollaborativeAttention) and module.heads:
            module.init_heads(init.normal_, init.zeros_, init.copy_)

    def _get_static_cache_init_shape(self) -> None:
        """None: the shapes of a static cache are known with the first keys, which are not those of the original."""

    def _prepare_decoder_input_ids_for_generation(
        self,
        batch_size: int,
        model_input_name: str,
        model_kwargs: dict[str, torch.Tensor],
        decoder_start_token_id: torch.Tensor,
        device: torch.device | None = None,
    ) -> tuple[Any, dict[str, torch.Tensor]]:
        # By the config's type, which is native there, transformers knows where nothing is put before a prompt.
        prompt = "decoder_input_ids" if "decoder_input_ids" in model_kwargs else "input_ids"
        if self.base_class.keeps_prompts and model_kwargs.get(prompt) is not None:
            return model_kwargs.pop(prompt), model_kwargs
        return super()._prepare_decoder_input_ids_for_generation(  # type: ignore[misc]
            batch_size, model_input_name, model_kwargs, decoder_start_token_id, device
        )

    def save_pretrained(self, save_directory: str | os.PathLike, *args: Any, **kwargs: Any) -> None:
        """Saves the model with the code that it runs on, so that it loads where collab is not installed.

        Arguments as in `transformers.PreTrainedModel.save_pretrained`.

        Raises:
            ValueError: if it is a part of a model whose config describes the whole, so that it would not load again.
        """
        described = getattr(self.config, "collab_layers", ())  # none in the native config of a part
        layers = sum(isinstance(module, CollaborativeAttention) for module in self.modules())
        if described is not None and len(described) not in (1, layers):
            raise ValueError(
                f"This {type(self).__name__} is a part of a converted model, and its config does not describe it "
                "alone. Save the whole model, or the part of the expanded model (collab.expand)."
            )
        self.config.auto_map = auto_map(type(self))
        if kwargs.get("is_main_process", True):
            copy_code(type(self), save_directory)
        # transformers would upload only the files that it wrote itself, not the code.
        push = kwargs.pop("push_to_hub", False)
        hub = {
            name: kwargs.pop(name) for name in ("repo_id", "commit_message", "private", "create_pr") if name in kwargs
        }
        super().save_pretrained(save_directory, *args, **kwargs)
        if push:
            hub.setdefault("repo_id", Path(save_directory).name)
            self.push_to_hub(token=kwargs.get("token"), **hub)


@dataclass(frozen=True)
class Shapes:
    """The shapes of a model's attention and feed-forward layers, by module name.

    The entries of the config are in the order of the modules of the whole model, an encoder's before its decoder's and
    in the decoder self-attention and cross-attention in turn. A part of the model takes those of its own modules.

    Attributes:
        attention: the shape of each attention layer.
        feed_forward: the number of neurons of each module with a feed-forward layer; empty if they are native.
    """

    attention: dict[str, AttentionSpec]
    feed_forward: dict[str, int]

    @classmethod
    def of_config(cls, model: nn.Module, base: "type[CollaborativeBase]", config: Any) -> "Shapes":
        """The shapes that a config gives a model, whose layers are still native."""
        layers = dict(outermost(model, base.attention_classes))
        if not layers:
            return cls({}, {})
        specs = config.attention_specs([attention_width(layer, base.attention_classes) for layer in layers.values()])
        blocks = [name for name, _ in outermost(model, base.feed_forward_classes)]
        widths = config.feed_forward_widths(len(blocks)) or ()
        return cls(dict(zip(layers, specs, strict=True)), dict(zip(blocks, widths, strict=False)))

    def inside(self, part: str) -> "Shapes":
        """The shapes of a part, by the names that modules have in it."""
        attention, feed_forward = (
            {name.removeprefix(f"{part}."): shape for name, shape in shapes.items() if name.startswith(f"{part}.")}
            for shapes in (self.attention, self.feed_forward)
        )
        return Shapes(attention, feed_forward)  # type: ignore[arg-type]

    def apply(self, model: nn.Module, base: "type[CollaborativeBase]", config: Any) -> None:
        """Replaces the native layers of a model."""
        for name, spec in self.attention.items():
            native = model.get_submodule(name)
            replacement = base.attention_classes[type(native)](native, spec, config)
            model.set_submodule(name, replacement)
            output = replacement.output_name(name)
            model.set_submodule(output, replacement.output_of_heads(model.get_submodule(output)))  # type: ignore[arg-type]
        for name, width in self.feed_forward.items():
            block = model.get_submodule(name)
            base.feed_forward_classes[type(block)].narrow(block, width)
        longer = [spec.long.dense_below for spec in self.attention.values() if spec.long is not None]
        if not longer:
            return
        for _, block in outermost(model, base.feed_forward_classes):
            base.feed_forward_classes[type(block)].divide(block, min(longer))
        layers: Any = [model.get_submodule(name) for name in self.attention]
        decoders = [layer for layer in layers if layer.kind == "decoder" and layer.heads]
        # Where a decoder's layer is dense, a mask of what follows is needed, which is T × T.
        if base.expands_masks and all(layer.spec.long is not None for layer in decoders):
            at_least = max(longer) if decoders else min(longer)
            model.register_forward_pre_hook(partial(_with_one_row, at_least), with_kwargs=True)


class CollaborativeBase(CollaborativeMixin):
    """Mixin for a family's main model, which declares what the others of the family have in common with it.

    Class attributes:
        config_class: the collaborative config.
        attention_classes: for each native attention class, the collaborative one that replaces it.
        expands_masks: whether the native main model makes nothing of a mask (B, S) but one for its attention layers,
            which is (B, 1, T, S), and takes one of four axes as it is.
        counts_by_mask: whether such a model finds the positions of tokens, given none, in a mask (B, S).
        position_type: the native config's `position_embedding_type`, where it has one.
        feed_forward_classes: for each native module that holds a feed-forward layer, where it keeps it.
        versions: the collaborative version of each native model class of the family, and of its parts.
        encoders: the models of an encoder alone, in a family of encoders with decoders.
        keeps_prompts: whether a decoder's prompt need not begin with the start token.
    """

    config_class: type[PreTrainedConfig]
    attention_classes: ClassVar[dict[type[nn.Module], type[CollaborativeAttention]]]
    expands_masks: ClassVar[bool] = False
    counts_by_mask: ClassVar[bool] = False
    position_type: ClassVar[str] = "absolute"
    feed_forward_classes: ClassVar[dict[type[nn.Module], FeedForward]] = {}
    versions: ClassVar[dict[type[PreTrainedModel], type[CollaborativeMixin]]]
    encoders: ClassVar[tuple[type[CollaborativeMixin], ...]] = ()
    keeps_prompts: ClassVar[bool] = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        cls.base_class = cls
        cls.versions = {}
        super().__init_subclass__(**kwargs)

    @classmethod
    def unsupported(cls, config: Any) -> str | None:
        """Why models of the family with this config, native or not, cannot be collaborative; None if they can."""
        return None


class CollaborativePart(CollaborativeMixin):
    """Mixin for a model that exists only inside others, such as an encoder."""


class CollaborativeHead(CollaborativeMixin):
    """Mixin for a model with a head on the main model of its family."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        cls.config_class = cls.base_class.config_class
        super().__init_subclass__(**kwargs)


def _with_one_row(
    at_least: int, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Before forward: a mask (B, S) of at least so many tokens as (B, 1, 1, S), of which none of T × S is made."""
    mask = kwargs.get("attention_mask")
    known = model.config._attn_implementation in ("sdpa", "eager") and not is_recorded()
    if not known or not isinstance(mask, torch.Tensor) or mask.ndim != 2 or mask.shape[1] < at_least:
        return None
    given = kwargs | {"attention_mask": mask[:, None, None].bool()}
    if model.base_class.counts_by_mask and kwargs.get("position_ids") is None:
        states = next(kwargs[name] for name in ("input_ids", "inputs_embeds") if kwargs.get(name) is not None)
        given["position_ids"] = positions_by_mask(mask, states.shape[1])
    return args, given


def positions_by_mask(mask: torch.Tensor, tokens: int) -> torch.Tensor:
    """The positions of the last tokens of a mask (B, S), counted from 0 by those that it shows, (B, tokens)."""
    return (mask.cumsum(dim=1) * mask - 1)[:, -tokens:].long()


def family_models(module: ModuleType) -> tuple[type[CollaborativeMixin], ...]:
    """The collaborative model classes that a family's file defines and that load by themselves, the main one first."""
    models = [
        member
        for member in vars(module).values()
        if isinstance(member, type)
        and issubclass(member, CollaborativeBase | CollaborativeHead)
        and issubclass(member, PreTrainedModel)
        and member.__module__ == module.__name__
    ]
    return tuple(sorted(models, key=lambda model: not issubclass(model, CollaborativeBase)))


def outermost(module: nn.Module, classes: Container[type[nn.Module]], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The modules of some classes inside a module, with their names, in order; what is inside of those is omitted."""
    for name, child in module.named_children():
        if type(child) in classes:
            yield prefix + name, child
        else:
            yield from outermost(child, classes, f"{prefix}{name}.")


def attention_width(layer: nn.Module, attention_classes: dict[type[nn.Module], type[CollaborativeAttention]]) -> int:
    """K of a native attention layer."""
    return attention_classes[type(layer)].native_projection(layer, "query").out_features


def optional_parts(base: PreTrainedModel) -> dict[str, bool]:
    """Constructor arguments that rebuild a base model with the same optional parts."""
    kind = type(base).native_class() if isinstance(base, CollaborativeMixin) else type(base)
    accepted = inspect.signature(kind.__init__).parameters
    parts = {
        "add_pooling_layer": getattr(base, "pooler", None) is not None,
        "use_mask_token": getattr(getattr(base, "embeddings", None), "mask_token", None) is not None,
    }
    return {name: present for name, present in parts.items() if name in accepted}


def natively_loaded(config: Any) -> dict[str, tuple[type[PreTrainedModel], ...]]:
    """The model classes that each Auto class of transformers loads for a config class, by the Auto class's name."""
    loaded = {}
    for name, auto_class in vars(modeling_auto).items():
        mapping = getattr(auto_class, "_model_mapping", None)
        if name.startswith("AutoModel") and mapping is not None and config in mapping:
            native = mapping[config]
            loaded[name] = tuple(native) if isinstance(native, tuple | list) else (native,)
    return loaded


def auto_classes(module: ModuleType) -> dict[str, tuple[type[CollaborativeMixin], ...]]:
    """The collaborative classes of a family that each Auto class of transformers loads.

    Follows transformers' own tables: ``AutoModelForMaskedLM`` loads the collaborative version of the class that it
    loads for the native config.

    Args:
        module: the family's file.

    Returns:
        By name of the Auto class, the classes it may load; the config's `architectures` chooses among several.
    """
    models = family_models(module)
    collaborative = {model.native_class(): model for model in models}
    native_config = models[0].native_class().config_class
    loadable = {
        name: known
        for name, natives in natively_loaded(native_config).items()
        if (known := tuple(collaborative[native] for native in natives if native in collaborative))
    }
    base: Any = models[0]
    return loadable | {"AutoModel": (base, *base.encoders)}


def auto_map(model_class: type[CollaborativeMixin]) -> dict[str, str]:
    """The `auto_map` of an exported model, with every Auto class that can load it, not only the one of its head.

    Args:
        model_class: the class of the model being saved.
    """
    module = sys.modules[model_class.__module__]
    file = module.__name__.rpartition(".")[2]
    entries = {"AutoConfig": f"{file}.{model_class.config_class.__name__}"}  # type: ignore[union-attr]
    loadable = auto_classes(module)
    if all(model_class not in classes for classes in loadable.values()):
        loadable["AutoModel"] = (model_class,)  # no Auto class loads the native one
    for name, classes in loadable.items():
        chosen = model_class if model_class in classes else classes[0]
        entries[name] = f"{file}.{chosen.__name__}"
    return entries


def copy_code(model_class: type, folder: str | os.PathLike) -> None:
    """Copies the file that defines a model, and what it imports from its own folder, into `folder`."""
    source = Path(sys.modules[model_class.__module__].__file__ or "")
    Path(folder).mkdir(parents=True, exist_ok=True)
    for file in [source, *map(Path, get_relative_import_files(source))]:
        target = Path(folder) / file.name
        if not target.exists() or not target.samefile(file):
            shutil.copyfile(file, target)
