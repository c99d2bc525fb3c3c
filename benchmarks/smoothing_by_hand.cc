// What the smoothing graph of engine.py costs if nothing but messages crosses the memory bus: each visit written out by
// hand, one pass over the image. How its time grows from 512 x 512, which the cache holds, to 2048 x 2048, which it does
// not, is how the machine grows.
//
//     g++ -O3 -march=native -ffast-math -std=c++20 -pthread benchmarks/smoothing_by_hand.cc -o /tmp/smoothing && /tmp/smoothing
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

using Row = std::vector<float>;

struct Messages {  // natural parameters, one for each pixel
    Row eta, lam;
};

constexpr float kVariance = 0.01f;  // of "neighbours are alike"

// A message to a neighbour, from the cavity: lam / (1 + variance lam), with the same mean.
inline void send(float eta, float lam, float& to_eta, float& to_lam) {
    to_lam = lam / (1.0f + kVariance * lam);
    to_eta = to_lam / lam * eta;
}

// Factors between pixels of a row: `left` are messages to their left pixels, `right` to their right ones.
void across(int width, int from, int to, const Messages& prior, Messages& left, Messages& right, const Messages& up,
            const Messages& down) {
    Row eta(width), lam(width), l_eta(width), l_lam(width), r_eta(width), r_lam(width);
    for (int i = from; i < to; i++) {
        size_t row = static_cast<size_t>(i) * width;
        for (int j = 0; j < width; j++) {
            eta[j] = prior.eta[row + j] + up.eta[row + j] + down.eta[row + j];
            lam[j] = prior.lam[row + j] + up.lam[row + j] + down.lam[row + j];
        }
        const float *le = &left.eta[row], *ll = &left.lam[row], *re = &right.eta[row], *rl = &right.lam[row];
        for (int j = 0; j + 1 < width; j++) send(eta[j] + re[j], lam[j] + rl[j], r_eta[j + 1], r_lam[j + 1]);
        for (int j = 0; j + 1 < width; j++) send(eta[j + 1] + le[j + 1], lam[j + 1] + ll[j + 1], l_eta[j], l_lam[j]);
        std::memcpy(&left.eta[row], l_eta.data(), 4 * width);
        std::memcpy(&left.lam[row], l_lam.data(), 4 * width);
        std::memcpy(&right.eta[row], r_eta.data(), 4 * width);
        std::memcpy(&right.lam[row], r_lam.data(), 4 * width);
    }
}

// Factors between rows; new messages go to other arrays, since threads read their neighbours' rows.
void along(int width, int height, int from, int to, const Messages& prior, const Messages& up, const Messages& down,
           const Messages& left, const Messages& right, Messages& new_up, Messages& new_down) {
    for (int i = from; i < to; i++) {
        size_t row = static_cast<size_t>(i) * width;
        for (size_t k = row; k < row + width; k++) {
            float eta = prior.eta[k] + left.eta[k] + right.eta[k], lam = prior.lam[k] + left.lam[k] + right.lam[k];
            if (i + 1 < height) send(eta + down.eta[k], lam + down.lam[k], new_down.eta[k + width], new_down.lam[k + width]);
            if (i > 0) send(eta + up.eta[k], lam + up.lam[k], new_up.eta[k - width], new_up.lam[k - width]);
        }
    }
}

double milliseconds(int side, int threads) {
    size_t pixels = static_cast<size_t>(side) * side;
    auto all = [&](float value) { return Messages{Row(pixels, value), Row(pixels, value)}; };
    Messages prior = all(1), left = all(0), right = all(0), up = all(0), down = all(0), new_up = all(0), new_down = all(0);
    auto in_parts = [&](auto work) {
        std::vector<std::thread> workers;
        for (int t = 0; t < threads; t++) workers.emplace_back(work, side * t / threads, side * (t + 1) / threads);
        for (auto& w : workers) w.join();
    };
    std::vector<double> times;
    for (int repeat = 0; repeat < 31; repeat++) {
        auto begin = std::chrono::steady_clock::now();
        in_parts([&](int a, int b) { across(side, a, b, prior, left, right, up, down); });
        in_parts([&](int a, int b) { along(side, side, a, b, prior, up, down, left, right, new_up, new_down); });
        std::swap(up, new_up);
        std::swap(down, new_down);
        times.push_back(std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count());
    }
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
}

int main() {
    for (int threads : {1, 2}) {
        double small = milliseconds(512, threads), middle = milliseconds(1024, threads), large = milliseconds(2048, threads);
        std::printf("%d threads: %.2f, %.2f, %.2f ms; 512 to 2048: %.2f x the edges\n", threads, small, middle, large,
                    large / small / 16);
    }
}
