"""BERT from transformers, with random weights: an encoder of padded sequences.

B batch, T sequence, D width.
"""

from __future__ import annotations

from torch import Tensor, nn

from effbench.models import libraries

libraries.load("transformers")
from transformers.models.bert.configuration_bert import BertConfig  # noqa: E402
from transformers.models.bert.modeling_bert import BertModel  # noqa: E402


class Bert(nn.Module):
    """`BertModel` with plain tensors as outputs. `seq`: sequence length, used by the inputs' shapes
    in the YAML.

    In eager mode transformers reads the mask, which synchronises with the device, and drops it if
    nothing is masked. Under torch.compile and in a CUDA graph it cannot read the mask, so the
    attention is masked.
    """

    def __init__(
        self,
        seq: int = 128,
        layers: int = 12,
        width: int = 768,
        heads: int = 12,
        vocab: int = 30522,
        attention: str = "sdpa",
    ):
        super().__init__()
        config = BertConfig(
            vocab_size=vocab,
            hidden_size=width,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            intermediate_size=4 * width,
            max_position_embeddings=max(512, seq),
            attn_implementation=attention,
        )
        self.bert = BertModel(config)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        # input_ids [B, T], attention_mask [B, T] -> last hidden state [B, T, D], pooled [B, D]
        output = self.bert(input_ids=input_ids, attention_mask=attention_mask)
        return output.last_hidden_state, output.pooler_output
