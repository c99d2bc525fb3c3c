"""Networks with known settings, for experiments and the command line."""

from __future__ import annotations

from functools import partial
from typing import Any

from ..core.robust import Tukey
from ..layers.categorical import CategoricalObservation
from ..layers.conv2d import Conv2D
from ..layers.conv_transpose2d import ConvTranspose2D
from ..layers.dense import Dense
from ..layers.gaussian_observation import GaussianObservation
from ..layers.join import Add
from ..layers.max_pool2d import MaxPool2D
from ..layers.pairwise_smoothing import PairwiseSmoothing
from ..layers.softmax import SoftmaxObservation
from ..layers.upsample2d import Upsample2D
from ..layers.whitened_patches import WhitenedPatches
from .network import Network
from .places import Tied
from .sequential import Sequential


def paper_classifier(
    filters: int = 16,
    *,
    sigma: float = 0.01,
    class_sigma: float = 0.01,
    conv_prior: float = 0.1,
    dense_prior: float = 0.15,
    logit_prior: float = 2.0,
) -> Sequential:
    """The paper's network for MNIST, FashionMNIST and CIFAR10 (Section 4.3), its standard deviations included.

    The paper does not give the priors of the biases. Means of the filters' prior are drawn at random, which breaks the
    symmetry between filters; those of the dense weights are zero, as in the paper.

    **Arguments:**

    - `sigma`: of convolution, pooling and dense layer; `class_sigma`: of the observed class.
    - `conv_prior`, `dense_prior`: standard deviations of the weights; `logit_prior`: of the outputs.
    """
    return Sequential(
        Conv2D(
            filters, kernel=5, activation="leaky_relu", sigma=sigma, weight_prior=conv_prior, bias_prior=0.1, prior=3.0
        ),
        MaxPool2D(2, sigma=sigma, prior=3.0),
        Dense(10, sigma=sigma, weight_prior=dense_prior, bias_prior=0.15, prior=logit_prior, weight_init=0.0),
        SoftmaxObservation(sigma=class_sigma),
    )


def vector_classifier(
    *,
    filter_prior: float = 0.3,
    filter_init: float = 0.2,
    dense_prior: float = 0.15,
    length_scale: float | None = 2.0,
    logit_prior: float = 50.0,
) -> Sequential:
    """The same layers for `Learner(activations="vector")`: filters as blocks, one covariance for all units of the head.

    It observes classes by their likelihood. The standard deviations were chosen on held-back training images of MNIST,
    FashionMNIST and CIFAR10 together (`docs/results.md`).

    **Arguments:**

    - `filter_prior`, `dense_prior`: standard deviations of the weights; `filter_init`: of the filters' prior means.
    - `length_scale`: of the prior of the dense weights, in pooled pixels, as `gbp.Dense`.
    - `logit_prior`: of the outputs.
    """
    return Sequential(
        Conv2D(
            16,
            kernel=5,
            activation="leaky_relu",
            sigma=0.01,
            weight_prior=filter_prior,
            bias_prior=filter_prior,
            weight_init=filter_init,
        ),
        MaxPool2D(2, sigma=0.01),
        Dense(
            10,
            sigma=0.01,
            weight_prior=dense_prior,
            bias_prior=0.15,
            prior=logit_prior,
            weight_init=0.0,
            length_scale=length_scale,
        ),
        CategoricalObservation(),
    )


def dense_vector_classifier(
    width: int = 501,
    *,
    gain: float = 2.0,
    length_scale: float | None = 2.0,
    bias_prior: float = 0.1,
    last_prior: float = 0.3,
    logit_prior: float = 30.0,
) -> Sequential:
    """Two hidden layers of `width` units for `Learner(activations="vector")`, beliefs along principal axes.

    It takes images `(height, width, channels)`.

    **Arguments:**

    - `gain`: of the hidden layers, as `gbp.Dense`; `length_scale`: of the first, in pixels.
    - `bias_prior`: standard deviation of all biases.
    - `last_prior`: standard deviation of the weights of the last layer, whose prior means are 0; `logit_prior`: of the
        outputs.
    """
    return Sequential(
        Dense(
            width,
            "leaky_relu",
            weight_prior=None,
            gain=gain,
            bias_prior=bias_prior,
            length_scale=length_scale,
            posterior="rotated",
        ),
        Dense(width, "leaky_relu", weight_prior=None, gain=gain, bias_prior=bias_prior, posterior="rotated"),
        Dense(
            10, weight_prior=last_prior, bias_prior=bias_prior, prior=logit_prior, weight_init=0.0, posterior="rotated"
        ),
        CategoricalObservation(),
    )


def lenet(classes: int = 10, *, filters: tuple[int, int] = (6, 16), units: tuple[int, ...] = (120, 84)) -> Sequential:
    """LeNet-5 (LeCun et al. 1998) for images of 28 x 28 pixels, with leaky rectifiers and pooling by the maximum.

    Every prior is that of its layer: nothing is tuned.

    **Arguments:**

    - `filters`: of its two convolutions; `units`: of its hidden dense layers.
    """
    return Sequential(
        Conv2D(filters[0], kernel=5, padding="same", activation="leaky_relu"),
        MaxPool2D(2),
        Conv2D(filters[1], kernel=5, activation="leaky_relu"),
        MaxPool2D(2),
        *(Dense(n, "leaky_relu") for n in units),
        Dense(classes),
        CategoricalObservation(),
    )


def smooth_lenet(
    classes: int = 10,
    *,
    filters: tuple[int, int] = (32, 64),
    start: str | None = "patches",
    weight_prior: float | str = 0.15,
    length_scale: float | None = 1.5,
) -> Sequential:
    """Two convolutions with pooling, and one dense layer whose weights are alike for neighbouring places.

    **Arguments:**

    - `filters`: of its two convolutions; `start`: "patches": their prior means are whitened patches (`gbp.Conv2D`).
    - `weight_prior`: standard deviation of the dense weights; `length_scale`: of their prior, in pooled pixels.
    """
    return Sequential(
        Conv2D(filters[0], kernel=5, padding="same", activation="leaky_relu", weight_init=start),
        MaxPool2D(2),
        Conv2D(filters[1], kernel=3, padding="same", activation="leaky_relu", weight_init=start),
        MaxPool2D(2),
        Dense(classes, weight_prior=weight_prior, bias_prior=0.15, length_scale=length_scale),
        CategoricalObservation(),
    )


def small_vgg(
    classes: int = 10, *, filters: tuple[int, int] = (32, 64), units: int = 512, start: str | None = None
) -> Sequential:
    """Four convolutions and a hidden dense layer, 890,410 parameters for CIFAR10: the network of AMP for BNNs.

    Every prior is that of its layer: nothing is tuned.

    **Arguments:** `filters`: of two convolutions each; `units`: of the hidden layer; `start`: as `smooth_lenet`.
    """
    pairs = [
        (*(Conv2D(n, kernel=3, activation="leaky_relu", weight_init=start) for _ in range(2)), MaxPool2D(2))
        for n in filters
    ]
    return Sequential(*pairs[0], *pairs[1], Dense(units, "leaky_relu"), Dense(classes), CategoricalObservation())


def residual_network(classes: int = 10, filters: int = 16, blocks: int = 4) -> Network:
    """A convolution, `blocks` of two convolutions beside a skip connection, and a dense layer: ten layers by default.

    Behind each of the first two blocks images are pooled to half their size. Every prior is that of its layer.
    """
    nodes: dict[str, Any] = {"stem": Conv2D(filters, kernel=3, padding="same", activation="leaky_relu")}
    before = "stem"
    for stage in range(1, blocks + 1):
        first, second, summed = f"first_{stage}", f"second_{stage}", f"sum_{stage}"
        nodes[first] = (Conv2D(filters, kernel=3, padding="same", activation="leaky_relu"), before)
        # What a block adds is smaller than what goes past it, so that sums do not grow.
        nodes[second] = Conv2D(filters, kernel=3, padding="same", weight_prior=None, gain=0.7)
        nodes[summed] = (Add(), before, second)
        before = summed
        if stage <= 2:
            before = f"pool_{stage}"
            nodes[before] = MaxPool2D(2)
    return Network({**nodes, "logits": Dense(classes), "class": CategoricalObservation()})


def autoencoder(numbers: int, code: int = 16, *, sigma: float = 0.1, tied: bool = True) -> Network | Sequential:
    """Encoder, latent layer and decoder: `learner.update(x, x)` with `Learner(activations="vector")`, small batches.

    **Arguments:**

    - `numbers`: of an example; about as large as 1, and about 0 on average.
    - `code`: units of the latent layer.
    - `sigma`: noise of the outputs.
    - `tied`: the decoder has the weights of the encoder, and the code is linear; else it has weights of its own, and
        the code is a tanh.
    """
    if tied:
        return Network(
            {
                "code": Dense(code, weight_prior=None),
                "outputs": Tied("code", transposed=True, prior=10.0),
                "target": GaussianObservation(sigma=sigma),
            },
            input_shape=(numbers,),
        )
    return Sequential(
        Dense(code, "tanh", name="code"),
        Dense(numbers, weight_prior=None, prior=10.0, name="outputs"),
        GaussianObservation(sigma=sigma),
        input_shape=(numbers,),
    )


def patches_classifier(
    *, weight_prior: float = 0.1, length_scale: float | None = 1.5, logit_prior: float = 50.0
) -> Sequential:
    """One dense layer, to stand behind `patches_features()`: `gbp.Learner(net, shape, features=patches_features())`.

    Its classes have one covariance of all weights. The settings were chosen on held-back training images of CIFAR10
    (`docs/results.md`).

    **Arguments:**

    - `weight_prior`: standard deviation of the weights; `length_scale`: of their prior, in regions, as `gbp.Dense`.
    - `logit_prior`: of the outputs.
    """
    return Sequential(
        Dense(
            10,
            weight_prior=weight_prior,
            weight_init=0.0,
            prior=logit_prior,
            length_scale=length_scale,
            posterior="shared",
        ),
        CategoricalObservation(),
    )


def patches_features(patches: int = 300, *, mirrored: bool = False) -> WhitenedPatches:
    """Whitened patches of images, for `patches_classifier()`: 18 features a patch.

    **Arguments:** `mirrored`: for classes that do not depend on what is left and right, as those of CIFAR10.
    """
    return WhitenedPatches(patches, kernel=6, regions=3, mirrored=mirrored)


def digits_vector_classifier() -> Sequential:
    """A small sister of it for the 8 x 8 digits of scikit-learn."""
    return Sequential(
        Conv2D(16, kernel=3, activation="leaky_relu", weight_prior=1.0, bias_prior=1.0),
        MaxPool2D(2),
        Dense(10, weight_prior=1.0, weight_init=0.0, prior=30.0),
        CategoricalObservation(),
    )


def digits_classifier() -> Sequential:
    """A small sister of the paper's network for the 8 x 8 digits of scikit-learn."""
    return Sequential(
        Conv2D(16, kernel=3, activation="leaky_relu", sigma=0.01, weight_prior=0.3, bias_prior=0.1, prior=3.0),
        MaxPool2D(2, sigma=0.01, prior=3.0),
        Dense(10, sigma=0.01, weight_prior=0.15, bias_prior=0.15, prior=2.0, weight_init=0.0),
        SoftmaxObservation(sigma=0.01),
    )


def dense_classifier(
    width: int = 501,
    *,
    sigma: float = 0.03,
    last_sigma: float = 1.0,
    class_sigma: float = 0.1,
    weight_prior: float | None = None,
    last_prior: float = 0.05,
    logit_prior: float = 5.0,
) -> Sequential:
    """Two hidden layers of `width` units, for images as flat vectors (the network of Lucibello et al. 2022).

    **Arguments:**

    - `sigma`, `last_sigma`: of the hidden layers, and of the last one; `class_sigma`: of the observed class. So many
        weights can explain every batch in many ways; noise keeps it from overwriting what was learnt before.
    - `weight_prior`, `last_prior`: standard deviations of the weights, of hidden layers and of the last one; None: as
        `gbp.Dense`.
    - `logit_prior`: standard deviation of the outputs.
    """
    hidden = partial(
        Dense, width, activation="leaky_relu", sigma=sigma, weight_prior=weight_prior, bias_prior=0.1, prior=3.0
    )
    return Sequential(
        hidden(),
        hidden(),
        Dense(10, sigma=last_sigma, weight_prior=last_prior, bias_prior=0.15, prior=logit_prior, weight_init=0.0),
        SoftmaxObservation(sigma=class_sigma),
    )


def pairwise_denoiser() -> Sequential:
    """The paper's baseline for video (Appendix D): every pixel is observed, and like its four neighbours.

    Nothing is learnt. Both energies are robust, channel by channel. The authors' code has every pair of neighbours
    twice, once from each side; here it is one factor of twice the precision, which lets go at the same difference.
    """
    twice = 2**0.5
    return Sequential(
        GaussianObservation(sigma=0.2, robust=Tukey(0.14)),
        PairwiseSmoothing(sigma=1.3 / twice, robust=Tukey(0.35 * twice)),
    )


def single_layer_denoiser() -> Sequential:
    """The paper's network for video with one layer of filters that paint the image (Section 4.2, Appendix D).

    The prior of the bias (0.3) is the authors', and so is where filters and outputs start; the paper gives neither.
    With random prior means of the filters instead (standard deviation 0.018) they learn more of the noise.
    """
    start = {"weight_init": 0.0, "weight_start": 0.1, "output_start": 0.1}
    return Sequential(_pixels(), _paint(4, 0.1, 0.018, robust=Tukey(1.4), robust_over=-1, **start))


def five_layer_denoiser() -> Sequential:
    """The paper's deep network for video: three layers of filters, images of half and a quarter of the size between.

    The priors of the biases (0.3) and of the small images (1.0) are the authors'; the paper does not give them.
    """
    return Sequential(
        _pixels(),
        _paint(4, 0.12, 0.15, robust=Tukey(2.5), robust_over=-1),
        Upsample2D(2, sigma=0.03, prior=1.0),
        _paint(8, 0.07, 0.3, activation="leaky_relu"),
        Upsample2D(2, sigma=0.03, prior=1.0),
        _paint(8, 0.07, 0.3, activation="leaky_relu"),
    )


def _pixels() -> GaussianObservation:
    return GaussianObservation(sigma=0.2, robust=Tukey(0.2))


def _paint(filters: int, sigma: float, weights: float, **more: Any) -> ConvTranspose2D:
    return ConvTranspose2D(filters, kernel=3, sigma=sigma, weight_prior=weights, bias_prior=0.3, prior=0.5, **more)
