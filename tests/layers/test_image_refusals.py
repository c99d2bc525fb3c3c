"""Image layers refuse what does not fit, in words."""

import pytest

import gbplearn as gbp
from image_factors import join, variables_of

BAD = {
    "kernel larger than the image": (lambda: gbp.Conv2D(1, kernel=(2, 5)).output_shape((4, 4, 1)), "does not fit"),
    "kernel larger, in a graph": (
        lambda: join(gbp.Conv2D(1, kernel=2), (1, 1, 3, 1), (1, 1, 2, 1)),
        "cannot join images",
    ),
    "patch larger than the image": (lambda: gbp.ConvTranspose2D(1, kernel=5).output_shape((4, 6, 1)), "do not fill 4"),
    "windows larger than the image": (lambda: gbp.MaxPool2D((5, 2)).output_shape((4, 4, 1)), "do not fit"),
    "average larger than the image": (lambda: gbp.AvgPool2D((2, 5)).output_shape((4, 4, 1)), "do not fit"),
    "stride larger than the kernel": (lambda: gbp.ConvTranspose2D(1, kernel=(3, 2), stride=3), "larger than the"),
    "stride that does not divide": (
        lambda: gbp.ConvTranspose2D(1, kernel=3, stride=2).output_shape((5, 6, 1)),
        "do not fill 6 pixels",
    ),
    "stride that does not divide, in a graph": (
        lambda: join(gbp.ConvTranspose2D(1, kernel=2, stride=2), (1, 3, 4, 1), (1, 1, 2, 1)),
        "do not fill 3 pixels",
    ),
    "patches that do not divide": (lambda: gbp.Upsample2D((2, 3)).output_shape((4, 4, 1)), "do not divide"),
    "patches that do not divide, in a graph": (
        lambda: join(gbp.Upsample2D(2), (1, 3, 4, 1), (1, 1, 2, 1)),
        "cannot join images",
    ),
    "unknown padding": (lambda: gbp.Conv2D(1, padding="full"), "'valid' or 'same', got 'full'"),
    "unknown borders": (lambda: gbp.ConvTranspose2D(1, borders="same"), "'full' or 'valid', got 'same'"),
    "outputs of another size": (
        lambda: join(gbp.Conv2D(1, kernel=2), (1, 4, 4, 1), (1, 4, 4, 1)),
        "cannot join images",
    ),
    "filters of another size": (
        lambda: join(gbp.Conv2D(1, kernel=3), (1, 4, 4, 1), (1, 2, 2, 1)),
        r"filters \(2, 2, 1, 1\)",
    ),
    "windows of another size": (lambda: join(gbp.MaxPool2D(2), (1, 4, 4, 1), (1, 2, 1, 1)), "cannot join images"),
    "windows of another rank": (lambda: join(gbp.AvgPool2D(2), (1, 4, 4), (1, 2, 2, 1)), "cannot join images"),
    "conv of another rank": (lambda: join(gbp.Conv2D(1, kernel=2), (1, 4), (1, 3, 3, 1)), "needs images"),
    "upsample of another rank": (lambda: join(gbp.Upsample2D(2), (1, 4, 4, 1), (1, 2, 2)), "cannot join images"),
    "one pixel": (lambda: gbp.PairwiseSmoothing().output_shape((1, 1, 3)), "no neighbouring pixels"),
    "filters": (lambda: gbp.Conv2D(0), "filters must be a whole number >= 1, got 0"),
    "kernel of three": (lambda: gbp.Conv2D(1, kernel=(3, 3, 3)), "kernel must be a whole number"),
    "kernel 0": (lambda: gbp.ConvTranspose2D(1, kernel=0), "kernel must be a whole number"),
    "stride 1.5": (lambda: gbp.Conv2D(1, stride=1.5), "stride must be a whole number"),
    "size True": (lambda: gbp.MaxPool2D(True), "size must be a whole number"),
    "sigma 0": (lambda: gbp.PairwiseSmoothing(sigma=0.0), "sigma must be a number > 0"),
    "robust": (lambda: gbp.AvgPool2D(2, robust=1.0), r"robust must be gbp.Tukey"),
    "activation": (lambda: gbp.ConvTranspose2D(1, activation="cube"), "activation must be one of"),
}
LAYERS = (gbp.Conv2D(1), gbp.ConvTranspose2D(1), gbp.MaxPool2D(), gbp.AvgPool2D(), gbp.Upsample2D())
for layer in (*LAYERS, gbp.PairwiseSmoothing()):
    for wrong in ((8,), (8, 8), (2, 8, 8, 1)):
        BAD[f"{type(layer).__name__} of {wrong}"] = (lambda one=layer, s=wrong: one.output_shape(s), "needs images")


@pytest.mark.parametrize("name", BAD)
def test_what_does_not_fit_is_refused(name):
    make, match = BAD[name]
    with pytest.raises(ValueError, match=match):
        make()


UNFINISHED = {  # they end in StopIteration, TypeError (without checked types IndexError) and IndexError
    "conv, same": lambda: join(gbp.Conv2D(1, kernel=2, padding="same"), (1, 4), (1, 4, 4, 1)),
    "paint": lambda: join(gbp.ConvTranspose2D(1, kernel=2), (1, 4), (1, 3, 3, 1)),
    "smooth": lambda: gbp.PairwiseSmoothing().factors("smooth", variables_of((1, 4))[0]),
}


@pytest.mark.parametrize("name", UNFINISHED)
def test_variables_of_another_rank_are_refused(name):
    with pytest.raises(ValueError, match="images"):
        UNFINISHED[name]()
