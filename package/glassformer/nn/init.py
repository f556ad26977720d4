"""How weights start.

Book: assembling
"""

from torch import nn

from glassformer.nn.blocks import Block, Stack
from glassformer.nn.embeddings import TokenEmbedding
from glassformer.nn.feed_forward import FeedForward

__all__ = ["init_weights"]


def init_weights(model: nn.Module) -> None:
    """Initialise ``model`` in place, from the global random state.

    Linear layers get Glorot-uniform weights (Glorot & Bengio 2010, equation 16) and zero biases.
    In a pre-norm stack of L blocks, the layers that write to the residual stream are divided by
    sqrt(2 L), so that the stream keeps its size with depth (Radford et al. 2019, section 2.3).
    Token vectors are normal with standard deviation 0.02 (Radford et al. 2019), small enough that
    an untrained model starts near a loss of ln(vocab_size) even where sinusoids multiply them by
    sqrt(d_model) and a tied head reads them back. The padding row stays zero.

    Book: assembling
    """
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, TokenEmbedding):
            nn.init.normal_(module.weight, std=0.02)
            module.reset_pad()
    for module in model.modules():
        if isinstance(module, Stack):
            _shrink_residual_writers(module)


def _shrink_residual_writers(stack: Stack) -> None:
    for block in stack.blocks:
        if isinstance(block, Block) and block.pre_norm:
            networks = [m for m in block.feed_forward.modules() if isinstance(m, FeedForward)]
            writers = [block.self_attn.o_proj, *(network.down_proj for network in networks)]
            if block.cross_attn is not None:
                writers.append(block.cross_attn.o_proj)
            for writer in writers:
                writer.weight.data.div_((2 * len(stack.blocks)) ** 0.5)
