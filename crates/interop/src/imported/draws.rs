//! The draws of Python's `random.Random(seed)`, which reproduce the arrival schedules of two tools.
//!
//! The generator is MT19937, seeded by `init_by_array` of the integer's 32-bit words (M. Matsumoto, T. Nishimura, "Mersenne
//! Twister", 1998, and its reference code). As in CPython, `random()` has 53 bits from two outputs, and `expovariate(λ)` is
//! −ln(1 − u) / λ.

const N: usize = 624;
const M: usize = 397;

pub(super) struct Python {
    state: [u32; N],
    at: usize,
}

impl Python {
    pub(super) fn new(seed: u64) -> Python {
        let low = seed as u32;
        let high = (seed >> 32) as u32;
        let key = if high == 0 { vec![low] } else { vec![low, high] };
        let mut state = [0u32; N];
        state[0] = 19_650_218;
        for i in 1..N {
            let before = state[i - 1] ^ (state[i - 1] >> 30);
            state[i] = before.wrapping_mul(1_812_433_253).wrapping_add(i as u32);
        }
        let (mut i, mut j) = (1, 0);
        let mix = |state: &[u32; N], i: usize, by: u32| {
            let before = state[i - 1] ^ (state[i - 1] >> 30);
            state[i] ^ before.wrapping_mul(by)
        };
        for _ in 0..N.max(key.len()) {
            state[i] = mix(&state, i, 1_664_525).wrapping_add(key[j]).wrapping_add(j as u32);
            (i, j) = (i + 1, (j + 1) % key.len());
            if i >= N {
                (state[0], i) = (state[N - 1], 1);
            }
        }
        for _ in 0..N - 1 {
            state[i] = mix(&state, i, 1_566_083_941).wrapping_sub(i as u32);
            i += 1;
            if i >= N {
                (state[0], i) = (state[N - 1], 1);
            }
        }
        state[0] = 0x8000_0000;
        Python { state, at: N }
    }

    fn next(&mut self) -> u32 {
        if self.at >= N {
            for k in 0..N {
                let y = (self.state[k] & 0x8000_0000) | (self.state[(k + 1) % N] & 0x7fff_ffff);
                let odd = if y & 1 == 1 { 0x9908_b0df } else { 0 };
                self.state[k] = self.state[(k + M) % N] ^ (y >> 1) ^ odd;
            }
            self.at = 0;
        }
        let mut y = self.state[self.at];
        self.at += 1;
        y ^= y >> 11;
        y ^= (y << 7) & 0x9d2c_5680;
        y ^= (y << 15) & 0xefc6_0000;
        y ^ (y >> 18)
    }

    /// Returns a uniform draw in [0, 1).
    fn random(&mut self) -> f64 {
        let (a, b) = (self.next() >> 5, self.next() >> 6);
        (f64::from(a) * 67_108_864.0 + f64::from(b)) / 9_007_199_254_740_992.0
    }

    /// Returns an exponential draw with this rate.
    pub(super) fn expovariate(&mut self, rate: f64) -> f64 {
        -(1.0 - self.random()).ln() / rate
    }
}

#[cfg(test)]
mod tests {
    use super::Python;

    /// `random.Random(42).random()` in CPython 3: 0.6394267984578837, 0.025010755222666936, 0.27502931836911926.
    #[test]
    fn the_draws_are_pythons() {
        let mut python = Python::new(42);
        let draws: Vec<f64> = (0..3).map(|_| python.random()).collect();
        assert_eq!(draws, [0.639_426_798_457_883_7, 0.025_010_755_222_666_936, 0.275_029_318_369_119_26]);
    }
}
