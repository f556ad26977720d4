"""From batches to a trained model: loss, schedule, optimiser, loop, checkpoints.

Book: training
"""

from glassformer.training.averaging import WeightAverage, mean_weights
from glassformer.training.batches import Batch, PairBatches, TrainingData, WindowBatches
from glassformer.training.best import BestModel
from glassformer.training.checkpoint import (
    average_checkpoints,
    load_checkpoint,
    load_model,
    load_tokenizer,
    load_weights,
    read_record,
    save_checkpoint,
    save_model,
)
from glassformer.training.distributed import (
    ShardedData,
    agree,
    gather,
    process_group,
    sharded,
    share,
    shared_loss,
    whole_model,
    wrap,
)
from glassformer.training.lock import sole_run
from glassformer.training.loop import StepReport, Trainer, TrainSettings
from glassformer.training.loss import TokenLoss, chunked_token_loss, counted, token_loss
from glassformer.training.optimizer import make_optimizer
from glassformer.training.packing import (
    Packing,
    kernel_for,
    packable,
    packed_decoder,
    packed_translator,
)
from glassformer.training.pair_recipe import PairRecipe, recipe_from_dict
from glassformer.training.recipe import Recipe, RunRecipe
from glassformer.training.schedule import warmup_constant, warmup_cosine, warmup_inverse_sqrt
from glassformer.training.step import (
    StepResult,
    autocast,
    batch_loss,
    make_scaler,
    total_loss,
    train_step,
)
from glassformer.training.tensorboard import tensorboard_writer

__all__ = [
    "Batch",
    "BestModel",
    "Packing",
    "PairBatches",
    "PairRecipe",
    "Recipe",
    "RunRecipe",
    "ShardedData",
    "StepReport",
    "StepResult",
    "TokenLoss",
    "TrainSettings",
    "Trainer",
    "TrainingData",
    "WeightAverage",
    "WindowBatches",
    "agree",
    "autocast",
    "average_checkpoints",
    "batch_loss",
    "chunked_token_loss",
    "counted",
    "gather",
    "kernel_for",
    "load_checkpoint",
    "load_model",
    "load_tokenizer",
    "load_weights",
    "make_optimizer",
    "make_scaler",
    "mean_weights",
    "packable",
    "packed_decoder",
    "packed_translator",
    "process_group",
    "read_record",
    "recipe_from_dict",
    "save_checkpoint",
    "save_model",
    "sharded",
    "share",
    "shared_loss",
    "sole_run",
    "tensorboard_writer",
    "token_loss",
    "total_loss",
    "train_step",
    "warmup_constant",
    "warmup_cosine",
    "warmup_inverse_sqrt",
    "whole_model",
    "wrap",
]
