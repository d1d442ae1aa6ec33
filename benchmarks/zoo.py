"""What `htaf.replace` does to models of timm, transformers and torchvision, untrained and small.

    python benchmarks/zoo.py [--only NAME ...] [--json FILE]

Of each model: the sites that were replaced, those that stayed and why, and whether all went well. Well means: converted
by default, forward and backward in eval mode and in training, hardened; every gradient is finite and reaches a layer in
front of a step; and no output is 0 and 1 alone that was not before. The exit status is 1 where something went wrong.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import measuring
import torch
from torch import Tensor, nn

import htaf
from htaf.transform.convert.flow import tensors_of

SIDE = 64
TIMM = (
    *("resnet10t", "resnet18", "resnext26ts", "seresnext26t_32x4d", "resnest14d", "skresnet18", "gcresnext26ts"),
    *("mobilenetv2_050", "mobilenetv3_small_050", "mobilenetv4_conv_small_035", "mnasnet_050", "mobilevit_xxs"),
    *("efficientnet_b0", "efficientnet_lite0", "tinynet_e", "ghostnet_050", "ghostnetv2_100", "lcnet_035"),
    *("regnetx_002", "regnety_002", "densenet121", "dla46_c", "hrnet_w18_small", "repvgg_a0", "convnext_atto"),
    *("convnextv2_atto", "edgenext_xx_small", "pvt_v2_b0", "poolformer_s12", "fastvit_t8", "efficientvit_b0"),
    *("vit_tiny_patch16_224", "eva02_tiny_patch14_224", "mixer_s32_224", "gmlp_s16_224", "xcit_nano_12_p16_224"),
    *("swin_tiny_patch4_window7_224", "levit_128s"),
)
OPTIONS: dict[str, dict[str, Any]] = {
    **{name: {"img_size": SIDE} for name in ("vit_tiny_patch16_224", "mixer_s32_224", "gmlp_s16_224")},
    "eva02_tiny_patch14_224": {"img_size": 56, "side": 56},
    "swin_tiny_patch4_window7_224": {"img_size": SIDE, "window_size": 2},
    "levit_128s": {"side": 224},
}
SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
WORDS = {**SIZES, "vocab_size": 50, "num_key_value_heads": 2, "head_dim": 8, "pad_token_id": 0}
# configuration, class of the model, what it reads
TRANSFORMERS: dict[str, tuple[dict[str, Any], str, str]] = {
    "Bert": ({**SIZES, "vocab_size": 50}, "BertForSequenceClassification", "words"),
    "DistilBert": (
        {"vocab_size": 50, "dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 32},
        "DistilBertForMaskedLM",
        "words",
    ),
    "GPT2": ({"vocab_size": 50, "n_embd": 16, "n_layer": 2, "n_head": 2}, "GPT2LMHeadModel", "words"),
    "Llama": (WORDS, "LlamaForCausalLM", "words"),
    "Mistral": (WORDS, "MistralForCausalLM", "words"),
    "Gemma2": (WORDS, "Gemma2ForCausalLM", "words"),
    "Qwen2Moe": (
        {
            **WORDS,
            "moe_intermediate_size": 16,
            "shared_expert_intermediate_size": 16,
            "num_experts": 2,
            "num_experts_per_tok": 1,
        },
        "Qwen2MoeForCausalLM",
        "words",
    ),
    "Mamba": (
        {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 2, "state_size": 4},
        "MambaForCausalLM",
        "words",
    ),
    "T5": (
        {"vocab_size": 50, "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2},
        "T5ForConditionalGeneration",
        "pairs",
    ),
    "Bart": (
        {
            "vocab_size": 50,
            "d_model": 16,
            "encoder_layers": 2,
            "decoder_layers": 2,
            "encoder_attention_heads": 2,
            "decoder_attention_heads": 2,
            "encoder_ffn_dim": 32,
            "decoder_ffn_dim": 32,
        },
        "BartForConditionalGeneration",
        "pairs",
    ),
    "Whisper": (
        {
            "vocab_size": 50,
            "d_model": 16,
            "encoder_layers": 2,
            "decoder_layers": 2,
            "encoder_attention_heads": 2,
            "decoder_attention_heads": 2,
            "encoder_ffn_dim": 32,
            "decoder_ffn_dim": 32,
            "max_source_positions": 20,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "decoder_start_token_id": 1,
        },
        "WhisperForConditionalGeneration",
        "speech",
    ),
    "ViT": ({**SIZES, "image_size": 16, "patch_size": 8}, "ViTForImageClassification", "image"),
    "Segformer": (
        {
            "hidden_sizes": [8, 8, 16, 16],
            "depths": [1, 1, 1, 1],
            "num_attention_heads": [1, 1, 2, 2],
            "decoder_hidden_size": 16,
        },
        "SegformerForSemanticSegmentation",
        "large image",
    ),
    "CLIP": (
        {
            "text_config": {**SIZES, "vocab_size": 50},
            "vision_config": {**SIZES, "image_size": 16, "patch_size": 8},
            "projection_dim": 8,
        },
        "CLIPModel",
        "both",
    ),
    "Wav2Vec2": (
        {
            **SIZES,
            "vocab_size": 50,
            "conv_dim": (8, 8),
            "conv_kernel": (10, 3),
            "conv_stride": (5, 2),
            "num_feat_extract_layers": 2,
            "num_conv_pos_embeddings": 4,
            "num_conv_pos_embedding_groups": 2,
            "feat_extract_norm": "group",
            "mask_time_prob": 0.0,
        },
        "Wav2Vec2ForCTC",
        "sound",
    ),
}
SMALL = {"min_size": SIDE, "max_size": SIDE}
NEVER_FEW = {"weights": None, "weights_backbone": None, "num_classes": 5}
TORCHVISION: dict[str, dict[str, Any]] = {
    "retinanet_resnet50_fpn": {**SMALL, "score_thresh": 0.0},
    "maskrcnn_resnet50_fpn": {**SMALL, "box_score_thresh": 0.0},
    "fasterrcnn_mobilenet_v3_large_320_fpn": {**SMALL, "box_score_thresh": 0.0},
    "fcos_resnet50_fpn": {**SMALL, "score_thresh": 0.0},
    "ssdlite320_mobilenet_v3_large": {"score_thresh": 0.0},
    "deeplabv3_mobilenet_v3_large": {},
    "lraspp_mobilenet_v3_large": {},
}
NAMES = (*TIMM, *TRANSFORMERS, *TORCHVISION)
Run = Callable[[nn.Module], Any]


def images(side: int = SIDE, count: int = 2) -> Tensor:
    return torch.randn(count, 3, side, side)


def of_timm(name: str) -> tuple[nn.Module, Any, Run]:
    import timm

    options = dict(OPTIONS.get(name, {}))
    x = images(options.pop("side", SIDE))
    return timm.create_model(name, pretrained=False, num_classes=5, **options), x, lambda model: model(x)


def of_transformers(name: str) -> tuple[nn.Module, Any, Run]:
    import transformers

    options, kind, reads = TRANSFORMERS[name]
    words = torch.randint(3, 50, (2, 6))
    examples: dict[str, dict[str, Tensor]] = {
        "words": {"input_ids": words},
        "pairs": {"input_ids": words, "decoder_input_ids": words[:, :4]},
        "speech": {"input_features": torch.randn(2, 80, 40), "decoder_input_ids": words[:, :4]},
        "image": {"pixel_values": images(16)},
        "large image": {"pixel_values": images()},
        "both": {"input_ids": words, "pixel_values": images(16)},
        "sound": {"input_values": torch.randn(2, 400)},
    }
    model = getattr(transformers, kind)(getattr(transformers, f"{name}Config")(**options))
    example = examples[reads]
    return model, example, lambda model: model(**example)


def of_torchvision(name: str) -> tuple[nn.Module, Any, Run]:
    from torchvision.models import detection, segmentation

    without_operators()
    made = getattr(detection, name, None) or getattr(segmentation, name)
    model = made(**NEVER_FEW, **TORCHVISION[name])
    if made.__module__.startswith(segmentation.__name__):
        x = images()
        return model, x, lambda model: model(x)
    several = [torch.rand(3, SIDE, SIDE), torch.rand(3, SIDE, SIDE - 8)]
    boxes = torch.tensor([[4.0, 4.0, 40.0, 44.0], [10.0, 8.0, 30.0, 50.0]])
    masks = torch.zeros(2, SIDE, SIDE, dtype=torch.uint8)
    masks[:, 10:30, 10:30] = 1
    targets = [
        {"boxes": boxes, "labels": torch.tensor([1, 2]), "masks": masks[..., : one.shape[-1]]} for one in several
    ]
    return model, (several,), lambda model: model(several, targets) if model.training else model(several)


def without_operators() -> None:
    """torchvision's own operators in plain PyTorch, where it was built for another PyTorch than this one."""
    from torchvision import ops
    from torchvision.extension import _has_ops

    if _has_ops():
        return

    def nms(boxes: Tensor, scores: Tensor, threshold: float) -> Tensor:
        kept, left = [], scores.argsort(descending=True)
        while len(left):
            kept.append(left[0])
            left = left[1:][ops.box_iou(boxes[left[:1]], boxes[left[1:]])[0] <= threshold]
        return torch.stack(kept) if kept else left

    def roi_align(x: Tensor, boxes: Tensor, output_size: tuple[int, int], *given: Any, **options: Any) -> Tensor:
        scale = options.get("spatial_scale", given[0] if given else 1.0)
        corners = (boxes[:, 1:] * scale).round().long().clamp(min=0).tolist()
        pools = []
        for image, (left, top, right, bottom) in zip(boxes[:, 0].long().tolist(), corners, strict=True):
            left, top = min(left, x.shape[3] - 1), min(top, x.shape[2] - 1)
            part = x[image, :, top : max(bottom, top + 1), left : max(right, left + 1)]
            pools.append(nn.functional.adaptive_avg_pool2d(part, output_size))
        return torch.stack(pools) if pools else x.new_zeros(0, x.shape[1], *output_size)

    sys.modules["torchvision.ops.boxes"].nms = nms  # pyright: ignore[reportAttributeAccessIssue]
    sys.modules["torchvision.ops.poolers"].roi_align = roi_align  # pyright: ignore[reportAttributeAccessIssue]
    sys.modules["torchvision.models.detection.roi_heads"].roi_align = roi_align  # pyright: ignore


def outputs(value: Any) -> list[Tensor]:
    return [one for one in tensors_of(value) if one.is_floating_point()]


def became_binary(before: list[Tensor], after: list[Tensor]) -> Iterator[int]:
    """Which outputs are 0 and 1 alone and were not."""

    def binary(tensor: Tensor) -> bool:
        return tensor.numel() > 1 and bool(((tensor == 0) | (tensor == 1)).all())

    for index, (one, other) in enumerate(zip(before, after, strict=False)):
        if binary(other) and not binary(one):
            yield index


def checked(model: nn.Module, example: Any, run: Run) -> dict[str, Any]:
    """Converts, runs and hardens a model; the row of the table without its name."""
    with torch.no_grad():
        before = outputs(run(model.eval()))
    smooth = htaf.replace(model, partial(htaf.HTAF, 2.0, 11.0), example=example)
    account = htaf.conversion(smooth)
    row: dict[str, Any] = {
        "replaced": dict(Counter(site.kind for site in account.replaced)),
        "stay": dict(Counter(f"{site.kind}: {site.stays}" for site in account.left)),
        "beyond": len(account.beyond),
    }
    wrong: list[str] = []
    for training in (False, True):
        smooth.train(training).zero_grad()
        made = [one for one in outputs(run(smooth)) if one.requires_grad]
        sum((one.float() ** 2).mean() for one in made if one.numel()).backward()  # pyright: ignore
        gradients = [p.grad for p in smooth.parameters() if p.grad is not None]
        mode = "training" if training else "eval"
        if not gradients or not all(bool(g.isfinite().all()) for g in gradients):
            wrong.append(f"gradients in {mode}")
    exact = htaf.harden(smooth).eval()
    with torch.no_grad():
        wrong += [f"output {index} became 0 and 1" for index in became_binary(before, outputs(run(exact)))]
    left = [name for name, module in exact.named_modules() if isinstance(module, htaf.HTAF)]
    return row | {"wrong": wrong + (["smooth steps left"] if left else [])}


def row_of(name: str) -> dict[str, Any]:
    begin = time.perf_counter()
    torch.manual_seed(0)
    made, library = (
        (of_timm, "timm")
        if name in TIMM
        else (of_transformers, "transformers")
        if name in TRANSFORMERS
        else (of_torchvision, "torchvision")
    )
    row: dict[str, Any] = {"model": name, "library": library, "replaced": {}, "stay": {}, "beyond": 0}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            row |= checked(*made(name))
        except Exception as error:  # whatever a model of others raises: the row says so
            row["wrong"] = [f"{type(error).__name__}: {str(error).splitlines()[0][:160]}"]
    row["warnings"] = sorted(
        {str(one.message)[:160] for one in caught if "htaf" in one.filename or "example" in str(one.message)}
    )
    return row | {"seconds": time.perf_counter() - begin}


def main() -> None:
    parser = measuring.parser(__doc__)
    parser.add_argument("--only", nargs="+", choices=NAMES, default=[*NAMES], metavar="NAME", help="default: all")
    arguments = measuring.begin(parser)
    rows = []
    for name in arguments.only:
        rows.append(row_of(name))
        print(rows[-1], flush=True)

    def words(counts: dict[str, int]) -> str:
        return ", ".join(f"{count} {kind}" for kind, count in counts.items())

    table = [
        (
            row["model"],
            words(row["replaced"]),
            words(row["stay"]),
            str(row["beyond"] or ""),
            "; ".join(row["wrong"]) or "well",
        )
        for row in rows
    ]
    measuring.show(
        "Untrained models", ("model", "replaced", "stay", "named", "went"), table, ["model", "replaced", "stay", "went"]
    )
    measuring.end(arguments, rows)
    wrong = [row["model"] for row in rows if row["wrong"]]
    print(f"{len(rows) - len(wrong)} of {len(rows)} models went well" + (f"; not {', '.join(wrong)}" if wrong else ""))
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
