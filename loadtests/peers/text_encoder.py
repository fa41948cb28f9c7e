"""Makes a small encoder of texts with random weights, in the form of sentence-transformers, and answers of its own.

Usage: text_encoder.py FOLDER. The folder gets the model, with the encoder in ONNX too; `texts.json`, of 16 to 512
tokens with the spread of real ones; and `expected.npy`, what sentence-transformers answers to the first of them.
"""

import json
import random
import sys
from pathlib import Path

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from tokenizers import Tokenizer, normalizers, pre_tokenizers, processors, trainers
from tokenizers.models import WordPiece
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

SYLLABLES = [consonant + vowel for consonant in "kmnrstvdlp" for vowel in "aeiou"]
SPECIAL = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
INPUTS = ["input_ids", "attention_mask", "token_type_ids"]
TEXTS, CHECKED = 512, 64


def main(folder: Path) -> None:
    """Write all into a folder."""
    chance = random.Random(7)  # noqa: S311  # no secret
    words = sorted({"".join(chance.choices(SYLLABLES, k=chance.randint(1, 4))) for _ in range(4000)})
    tokenizer = Tokenizer(WordPiece(unk_token=SPECIAL["unk"]))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=6000, special_tokens=list(SPECIAL.values()))
    tokenizer.train_from_iterator([" ".join(words)], trainer)
    tokenizer.post_processor = processors.BertProcessing((SPECIAL["sep"], 3), (SPECIAL["cls"], 2))
    named = {f"{name}_token": token for name, token in SPECIAL.items()}
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, model_max_length=512, model_input_names=INPUTS, **named
    )
    fast.save_pretrained(folder)
    torch.manual_seed(7)
    # The sizes of BERT-mini, with greater weights: those of a fresh model hardly tell texts apart.
    sizes = {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 1024}
    config = BertConfig(vocab_size=tokenizer.get_vocab_size(), initializer_range=0.1, **sizes)
    bert = BertModel(config, add_pooling_layer=False).eval()
    bert.save_pretrained(folder)
    # In a form that earlier versions of the libraries read too, as Infinity's.
    steps = {"Transformer": "", "Pooling": "1_Pooling", "Normalize": "2_Normalize"}
    files = {
        "modules.json": [
            {"idx": place, "name": str(place), "path": path, "type": f"sentence_transformers.models.{kind}"}
            for place, (kind, path) in enumerate(steps.items())
        ],
        "1_Pooling/config.json": {"word_embedding_dimension": 256, "pooling_mode_mean_tokens": True},
        "2_Normalize/config.json": {},
        "sentence_bert_config.json": {"max_seq_length": 512, "do_lower_case": False},
    }
    for name, content in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps(content))
    tokenizing = folder / "tokenizer_config.json"
    tokenizing.write_text(tokenizing.read_text().replace("TokenizersBackend", "PreTrainedTokenizerFast"))
    (folder / "onnx").mkdir()
    # Tensors of their own: of one that is given twice, the exporter makes one input.
    examples = tuple(torch.ones(2, 7, dtype=torch.long) for _ in INPUTS)
    free = {0: torch.export.Dim("rows", min=1, max=4096), 1: torch.export.Dim("tokens", min=2, max=512)}
    torch.onnx.export(
        bert, examples, folder / "onnx" / "model.onnx", input_names=INPUTS,
        output_names=["last_hidden_state"], dynamic_shapes=dict.fromkeys(INPUTS, free), external_data=False,
    )  # fmt: skip
    lengths = np.random.default_rng(7).lognormal(np.log(85), 0.75, 4 * TEXTS)
    texts = [
        fast.decode(fast(" ".join(chance.choices(words, k=512)))["input_ids"][1 : int(tokens) - 1])
        for tokens in lengths[(lengths >= 16) & (lengths < 512)][:TEXTS]
    ]
    (folder / "texts.json").write_text(json.dumps(texts))
    model = SentenceTransformer(str(folder), device="cpu")
    np.save(folder / "expected.npy", model.encode(texts[:CHECKED], batch_size=1))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
