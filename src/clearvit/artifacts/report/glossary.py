"""What the words of a report mean, and what people ask about artifact tokens most often."""

from __future__ import annotations

from clearvit.artifacts.outliers import MAX_FRACTION, MIN_EXCESS, MIN_FRACTION, MIN_RATIO
from clearvit.report.elements import Details, Paragraph, Section

QUESTIONS = (
    (
        "Which norm, over which axis, at which layer?",
        "The Euclidean norm over the channels of each patch token, at the output of every block,"
        " before the final norm. It is divided by the median norm of the patches of the same"
        " image, so 2 means twice the usual norm there. Class token and registers are left out"
        " of all statistics and reported apart. Blocks are counted from 0 on this page, in the"
        " JSON file and in all options.",
    ),
    (
        "I see no high-norm tokens in my own plot. Why?",
        "Most often because the features were read after the final norm, which gives all tokens"
        " about the same norm; most helper functions apply it by default. Read the block output"
        " itself: x_prenorm in the DINOv2 code, norm=False in timm and clearvit, hidden_states in"
        " transformers. Some models also shrink the outliers in their last block: look at the"
        " blocks before it. And some models, often small ones, have none.",
    ),
    (
        "How is the cutoff found?",
        "No percentile is fixed. Norms without artifacts form one mode whose density falls at least"
        " exponentially; the slope within the mode bounds how many tokens it can put beyond any"
        f" cutoff. Tokens beyond a cutoff are outliers if they are at least {MIN_EXCESS:.0f} times"
        f" that bound, the cutoff is {MIN_RATIO} times the median or further, and they are"
        f" {100 * MIN_FRACTION:g} to {100 * MAX_FRACTION:.0f} % of the tokens: more than that is a"
        " population, not an artifact. Both sides are searched, because artifacts of CLIP-like"
        " models have low norms. One block alone inside the network does not count.",
    ),
    (
        "What do interval and confidence say?",
        "The interval holds 95 % of the fractions found in resampled sets of images (with fewer"
        " than 8 images, of tokens). Confidence is the fraction of these sets in which outliers are"
        " found again; for positions of the grid, how well two halves of the images agree; for"
        " shifts, the fraction of the images that show the effect.",
    ),
    (
        "Attention map scripts fail: 845 tokens instead of 841",
        "A model with registers has 1 + n prefix tokens, not 1. Drop all of them before reshaping"
        " to the grid; in clearvit tokens.patches never holds prefix tokens.",
    ),
    (
        "My model has registers. Can it have artifacts still?",
        "Yes, that happens; measure, do not assume. Where registers do their work, the diamonds"
        " in the norm chart lie far above the patches and no second mode is left among these.",
    ),
    (
        "Are registers always better?",
        "Not always. Of small models, the version with registers may give worse colors in a PCA"
        " over several images, and clean norms are not the same as good semantics. Compare on"
        " your own task before choosing.",
    ),
    (
        "Can CLIP, or my own model, get registers?",
        "Yes: registers can be added to a trained model afterwards, by distilling it from its own"
        " tokens averaged over shifted views, without labels.",
    ),
    (
        "Why does the rule for position embeddings matter?",
        "Away from its native size a model resizes its position embeddings. Bicubic with or"
        " without antialiasing, and with an offset or not, gives different features before any"
        " artifact is looked for. The rule used is in the settings above; use the one the model"
        " was trained with.",
    ),
)


def glossary_section() -> Section:
    """Explain the words, folded until somebody asks."""
    folded = tuple(Details(question, (Paragraph(answer),)) for question, answer in QUESTIONS)
    source = Paragraph(
        "After Darcet et al., Vision Transformers Need Registers, ICLR 2024, arXiv 2309.16588.",
        faint=True,
    )
    return Section("Definitions and questions", (*folded, source))
