"""What came before: recurrent and convolutional language models, and a translator with attention.

They are baselines, small and plain. A comparison with a Transformer is fair only if both sides
have the same number of parameters and the same training.

Book: motivation
"""

import math
from collections.abc import Callable
from typing import Literal, cast, get_args

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from glassformer.errors import ConfigError, ShapeError
from glassformer.nn import LayerNorm

__all__ = ["ConvolutionalLM", "RecurrentLM", "RecurrentTranslator"]

CellKind = Literal["rnn", "lstm", "gru"]

_CELLS: dict[str, Callable[..., nn.RNNBase]] = {"rnn": nn.RNN, "lstm": nn.LSTM, "gru": nn.GRU}


class RecurrentLM(nn.Module):
    """A language model that reads one token after the other: RNN, LSTM or GRU.

    Embedding, a stack of PyTorch's own recurrent layers, and an output head that is the embedding
    matrix again, so that the head adds no parameters.

    Args:
        vocab_size: number of token ids.
        d_model: width of embeddings and hidden states.
        n_layers: recurrent layers.
        cell: ``rnn`` (tanh), ``lstm`` or ``gru``.
        forget_bias: for an LSTM, what its forget gates start with as their bias: at 3 a cell keeps
            95 % per step. ``None`` leaves PyTorch's start around 0, where it keeps half.
        dropout: share of values dropped between layers in training.

    Raises:
        ConfigError: an unknown cell, a size below 1, or a forget bias for a cell without one.

    Source: Elman 1990; Hochreiter and Schmidhuber 1997; Cho et al. 2014; Jozefowicz et al. 2015
    for the bias. Book: motivation
    """

    def __init__(
        self,
        vocab_size: int,
        d_model: int,
        *,
        n_layers: int = 1,
        cell: CellKind = "lstm",
        forget_bias: float | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        _check_sizes(vocab_size=vocab_size, d_model=d_model, n_layers=n_layers)
        if cell not in _CELLS:
            raise ConfigError(f"cell={cell!r} may be {', '.join(get_args(CellKind))}")
        if forget_bias is not None and cell != "lstm":
            raise ConfigError(
                f"forget_bias={forget_bias} given for cell={cell!r}; only an LSTM has a forget gate"
            )
        self.embedding = nn.Embedding(vocab_size, d_model)
        nn.init.normal_(self.embedding.weight, std=1 / math.sqrt(d_model))
        between = dropout if n_layers > 1 else 0.0
        self.recurrence = _CELLS[cell](
            d_model, d_model, num_layers=n_layers, batch_first=True, dropout=between
        )
        if forget_bias is not None:
            _open_forget_gates(self.recurrence, forget_bias)

    def forward(self, tokens: Int[Tensor, "batch time"]) -> Float[Tensor, "batch time vocab_size"]:
        """Logits of the token that follows each position.

        Args:
            tokens: ids. Padding stands on the right, where real tokens do not see it.
        """
        return F.linear(self.hidden(tokens), self.embedding.weight)

    def hidden(self, tokens: Int[Tensor, "batch time"]) -> Float[Tensor, "batch time d_model"]:
        """The hidden state after each token."""
        states: Tensor = self.recurrence(_embedded(self.embedding, tokens))[0]
        return states


class ConvolutionalLM(nn.Module):
    """A language model of causal convolutions: each layer sees a window of earlier positions.

    A layer is a norm, a convolution over the window, a gate and a residual connection. With
    ``dilation`` 2 the windows of layer 0, 1, 2 … have gaps of 1, 2, 4 … positions.

    Args:
        vocab_size: number of token ids.
        d_model: width of embeddings and layers.
        n_layers: convolutions on top of each other.
        kernel_size: positions that one window covers, the current one included.
        dilation: factor by which the gaps grow from layer to layer; 1 for windows without gaps.

    Raises:
        ConfigError: a size below 1, or a kernel that sees one position only.

    Source: Dauphin et al. 2017 for the gates; van den Oord et al. 2016 for the gaps.
    Book: motivation
    """

    def __init__(
        self,
        vocab_size: int,
        d_model: int,
        *,
        n_layers: int = 1,
        kernel_size: int = 3,
        dilation: int = 1,
    ) -> None:
        super().__init__()
        _check_sizes(vocab_size=vocab_size, d_model=d_model, n_layers=n_layers, dilation=dilation)
        if kernel_size < 2:
            raise ConfigError(
                f"kernel_size={kernel_size} sees no earlier position; give at least 2"
            )
        self.kernel_size = kernel_size
        self.embedding = nn.Embedding(vocab_size, d_model)
        nn.init.normal_(self.embedding.weight, std=1 / math.sqrt(d_model))
        self.norms = nn.ModuleList(LayerNorm(d_model) for _ in range(n_layers))
        self.convolutions = nn.ModuleList(
            nn.Conv1d(d_model, 2 * d_model, kernel_size, dilation=dilation**layer)
            for layer in range(n_layers)
        )

    @property
    def receptive_field(self) -> int:
        """How many positions, the current one included, decide an output."""
        return 1 + sum(_reach(layer) for layer in self.convolutions)

    def forward(self, tokens: Int[Tensor, "batch time"]) -> Float[Tensor, "batch time vocab_size"]:
        """Logits of the token that follows each position.

        Args:
            tokens: ids. Padding stands on the right, where real tokens do not see it.
        """
        return F.linear(self.hidden(tokens), self.embedding.weight)

    def hidden(self, tokens: Int[Tensor, "batch time"]) -> Float[Tensor, "batch time d_model"]:
        """The last layer's output at each position."""
        x = _embedded(self.embedding, tokens)
        for norm, convolution in zip(self.norms, self.convolutions, strict=True):
            padded = F.pad(norm(x).mT, (_reach(convolution), 0))  # on the left: no future
            x = x + F.glu(convolution(padded), dim=1).mT
        return x


class RecurrentTranslator(nn.Module):
    """The translator before the Transformer: an LSTM that looks back at its source by attention.

    A bidirectional LSTM reads the source. Before each target token, the decoder's state asks the
    source positions, receives their weighted average, and takes one LSTM step with it.

    Args:
        vocab_size: number of token ids; source and target share them and their embedding.
        d_model: width of embeddings, states and the hidden layer of the attention.
        n_layers: layers of the encoder. The decoder has one.
        dropout: share of embeddings and outputs dropped in training.

    Raises:
        ConfigError: a size below 1, or an odd ``d_model``, which two directions cannot share.

    Source: Bahdanau et al. 2015, with LSTMs in place of their gated units. Book: motivation
    """

    def __init__(
        self, vocab_size: int, d_model: int, *, n_layers: int = 1, dropout: float = 0.0
    ) -> None:
        super().__init__()
        _check_sizes(vocab_size=vocab_size, d_model=d_model, n_layers=n_layers)
        if d_model % 2:
            raise ConfigError(f"d_model={d_model} must be even: each direction takes one half")
        self.embedding = nn.Embedding(vocab_size, d_model)
        nn.init.normal_(self.embedding.weight, std=1 / math.sqrt(d_model))
        self.encoder = nn.LSTM(
            d_model,
            d_model // 2,
            num_layers=n_layers,
            batch_first=True,
            bidirectional=True,
            dropout=dropout if n_layers > 1 else 0.0,
        )
        self.first_state = nn.Linear(d_model, d_model)
        self.query_proj = nn.Linear(d_model, d_model, bias=False)
        self.key_proj = nn.Linear(d_model, d_model)
        self.score = nn.Linear(d_model, 1, bias=False)
        self.cell = nn.LSTMCell(2 * d_model, d_model)
        self.output = nn.Linear(3 * d_model, d_model)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self,
        source: Int[Tensor, "batch source"],
        target: Int[Tensor, "batch time"],
        *,
        source_mask: Bool[Tensor, "batch source"] | None = None,
        target_mask: Bool[Tensor, "batch time"] | None = None,
    ) -> Float[Tensor, "batch time vocab_size"]:
        """Logits of the target token that follows each target position, for training.

        Args:
            source, target: ids.
            source_mask: True where a source token is real; padding stands on the right.
            target_mask: taken so that all translators are called alike. A step never sees what
                comes after it, so padding on the right changes no real position.

        Raises:
            ShapeError: a source mask with padding on the left, or a row of padding alone.
        """
        memory = self.encode(source, token_mask=source_mask)
        embedded = self.dropout(_embedded(self.embedding, target))
        keys = self.key_proj(memory)
        state = self.first_state(memory[:, 0]).tanh()
        carry = torch.zeros_like(state)
        steps = []
        for x in embedded.unbind(dim=1):
            context = self.attention(state, keys, source_mask).unsqueeze(1) @ memory
            context = context.squeeze(1)
            state, carry = self.cell(torch.cat([x, context], dim=-1), (state, carry))
            steps.append(torch.cat([state, context, x], dim=-1))
        hidden = self.dropout(self.output(torch.stack(steps, dim=1)).tanh())
        return F.linear(hidden, self.embedding.weight)

    def encode(
        self,
        source: Int[Tensor, "batch source"],
        *,
        token_mask: Bool[Tensor, "batch source"] | None = None,
    ) -> Float[Tensor, "batch source d_model"]:
        """One vector per source token, zeros at padding."""
        x = self.dropout(_embedded(self.embedding, source, "source"))
        if token_mask is None:
            memory: Tensor = self.encoder(x)[0]
            return memory
        lengths = _lengths(token_mask, source)
        packed = pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
        return pad_packed_sequence(
            self.encoder(packed)[0], batch_first=True, total_length=source.shape[1]
        )[0]

    def attention(
        self,
        state: Float[Tensor, "batch d_model"],
        keys: Float[Tensor, "batch source d_model"],
        source_mask: Bool[Tensor, "batch source"] | None = None,
    ) -> Float[Tensor, "batch source"]:
        """The shares of the source positions, by a score that adds where ours multiplies."""
        scores: Tensor = self.score((self.query_proj(state).unsqueeze(1) + keys).tanh()).squeeze(-1)
        if source_mask is not None:
            scores = scores.masked_fill(~source_mask, torch.finfo(scores.dtype).min)
        return scores.softmax(dim=-1)


def _open_forget_gates(recurrence: nn.RNNBase, value: float) -> None:
    """Set the forget gates' bias; PyTorch has two that are added, gates in the order i, f, g, o."""
    size = recurrence.hidden_size
    with torch.no_grad():
        for name, bias in recurrence.named_parameters():
            if name.startswith("bias"):
                bias[size : 2 * size] = value if name.startswith("bias_ih") else 0.0


def _reach(convolution: nn.Module) -> int:
    """How many positions back one convolution looks."""
    layer = cast(nn.Conv1d, convolution)
    return (layer.kernel_size[0] - 1) * layer.dilation[0]


def _embedded(embedding: nn.Embedding, tokens: Tensor, name: str = "tokens") -> Tensor:
    if tokens.ndim != 2 or tokens.shape[1] == 0:
        raise ShapeError(
            f"{name} must have shape (batch, time) with at least one token, but got "
            f"{tuple(tokens.shape)}; for one sequence add a batch axis with {name}[None]"
        )
    vectors: Tensor = embedding(tokens)
    return vectors


def _lengths(token_mask: Tensor, source: Tensor) -> Tensor:
    lengths = token_mask.sum(dim=1)
    right = torch.arange(source.shape[1], device=source.device) < lengths[:, None]
    if token_mask.shape != source.shape or not torch.equal(token_mask, right):
        raise ShapeError(
            "source_mask must be of the source's shape, True for each real token and then False: "
            "padding stands on the right"
        )
    if not bool(lengths.all()):
        raise ShapeError("a row of the source is padding alone; leave it out of the batch")
    return lengths


def _check_sizes(**sizes: int) -> None:
    for name, size in sizes.items():
        if size < 1:
            raise ConfigError(f"{name}={size} must be at least 1")
