"""Read another library's config key by key, so that no setting goes unseen.

Book: evolution
"""

from collections.abc import Mapping
from typing import Any

from glassformer.errors import ConfigError

# Keys that do not change what a model computes, in any family: where it comes from, what its
# calls return, how fresh weights start, and how text is generated with it.
_KEYS = """
_name_or_path _num_labels architectures auto_map dtype finetuning_task id2label label2id
model_type name_or_path num_labels prefix problem_type task_specific_params tokenizer_class
torch_dtype transformers_version
attn_implementation _attn_implementation chunk_size_feed_forward gradient_checkpointing
output_attentions output_hidden_states output_past return_dict torchscript use_bfloat16
use_cache
classif_dropout classifier_dropout init_std initializer_factor initializer_range
bad_words_ids begin_suppress_tokens bos_token_id decoder_start_token_id diversity_penalty
do_sample early_stopping encoder_no_repeat_ngram_size eos_token_id
exponential_decay_length_penalty forced_bos_token_id forced_eos_token_id length_penalty
max_length min_length no_repeat_ngram_size num_beam_groups num_beams num_return_sequences
output_scores remove_invalid_values repetition_penalty return_dict_in_generate sep_token_id
suppress_tokens temperature tf_legacy_loss top_k top_p typical_p
"""
HARMLESS = frozenset(_KEYS.split())

PLAIN_NAMES = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "silu": "silu",
    "swish": "silu",
}
GATED_NAMES = {
    "silu": "swiglu",
    "swish": "swiglu",
    "gelu_pytorch_tanh": "geglu",
    "gelu_new": "geglu",
}


class Settings:
    """Their config: :meth:`done` refuses every key that was neither read nor is harmless.

    Args:
        data: the content of ``config.json``.

    Book: evolution
    """

    def __init__(self, data: Mapping[str, Any]) -> None:
        self._data = dict(data)
        self._read: set[str] = set()

    def size(self, key: str) -> Any:
        """The value of a key that must be there."""
        self._read.add(key)
        if self._data.get(key) is None:
            raise ConfigError(f"the config lacks {key!r}; copy the whole config.json again")
        return self._data[key]

    def get(self, key: str, default: Any) -> Any:
        """The value of a key, or what it means if it is left out."""
        self._read.add(key)
        return self._data.get(key, default)

    def expect(self, key: str, value: Any, *also: Any) -> None:
        """Refuse a setting that asks for something our models do not have.

        A key that is left out, or null, has the first of the allowed values.
        """
        self._read.add(key)
        given = self._data.get(key)
        if given is not None and given not in (value, *also):
            raise self.refuse(key, given, " or ".join(repr(v) for v in (value, *also)))

    def activation(self, key: str, default: str, names: Mapping[str, str]) -> Any:
        """Our name of an activation."""
        given = self.get(key, default)
        if given not in names:
            raise self.refuse(key, given, " or ".join(names))
        return names[given]

    def rope_base(self) -> float:
        """The base of rotary frequencies that are neither scaled nor partial."""
        given = self.get("rope_parameters", None) or {}
        rope = {"rope_theta": self.get("rope_theta", 10_000.0), **given}
        for key, value in {**(self.get("rope_scaling", None) or {}), **rope}.items():
            plain = {"rope_type": "default", "type": "default", "partial_rotary_factor": 1.0}
            if key != "rope_theta" and value != plain.get(key):
                name = "rope_parameters" if key in given else "rope_scaling"
                raise self.refuse(f"{name}[{key!r}]", value, "plain rotary positions")
        self.expect("partial_rotary_factor", 1.0)
        self.expect("rope_interleaved", False)
        return float(rope["rope_theta"])

    def refuse(self, key: str, given: Any, wanted: str) -> ConfigError:
        """The error for a setting that our models do not have."""
        return ConfigError(
            f"{key}={given!r} is not supported, only {wanted}; choose a model without it"
        )

    def done(self, harmless: frozenset[str]) -> None:
        """Refuse what was not understood: it might change what the model computes."""
        for key, value in self._data.items():
            if key not in self._read | HARMLESS | harmless:
                raise ConfigError(
                    f"the config key {key!r} (here {value!r}) is unknown; take it out if it does "
                    "not change what the model computes"
                )


def spelling(names: Mapping[str, str], ours: str) -> str:
    """Their name of our activation; an unknown one comes back as it is, and is refused later.

    Book: evolution
    """
    return next((theirs for theirs, mine in names.items() if mine == ours), ours)
