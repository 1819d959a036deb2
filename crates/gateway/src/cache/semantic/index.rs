//! Index of the embeddings of cached prompts: finds the nearest text by a scan over the texts of one context.
//!
//! An index for millions of texts (HNSW) lost, because one context has at most a few thousand texts. A scan of 4 096
//! vectors of 1 024 numbers takes 0.8 ms, is exact and deletes without gaps.

use std::collections::{HashMap, VecDeque};

use crate::cache::CacheKey;

pub(crate) const MOST_NUMBERS: usize = 8_192;

struct Entry {
    key: CacheKey,
    vector: Box<[f32]>,
}

pub struct Index {
    most: usize,
    contexts: HashMap<[u8; 32], Vec<Entry>>,
    /// All entries from oldest to newest, including entries that were removed since.
    order: VecDeque<([u8; 32], CacheKey)>,
    entries: usize,
}

impl Index {
    /// Returns an empty index for `most` texts.
    pub fn new(most: usize) -> Index {
        Index { most, contexts: HashMap::new(), order: VecDeque::new(), entries: 0 }
    }

    /// Returns the entry of this context nearest to a unit vector, and their cosine similarity.
    pub fn nearest(&self, context: &[u8; 32], vector: &[f32]) -> Option<(f64, CacheKey)> {
        let entries = self.contexts.get(context)?;
        let each = entries.iter().filter_map(|entry| Some((cosine(&entry.vector, vector)?, entry.key)));
        each.max_by(|one, other| one.0.total_cmp(&other.0))
    }

    /// Adds a text and replaces an earlier text of the same key. The oldest entry is removed if the index is full.
    pub fn insert(&mut self, context: [u8; 32], key: CacheKey, vector: Box<[f32]>) {
        let entries = self.contexts.entry(context).or_default();
        match entries.iter_mut().find(|entry| entry.key == key) {
            Some(entry) => entry.vector = vector,
            None => {
                entries.push(Entry { key, vector });
                self.entries += 1;
                self.order.push_back((context, key));
            }
        }
        while self.order.len() > self.most {
            let Some((context, key)) = self.order.pop_front() else { return };
            self.forget(&context, &key);
        }
    }

    /// Removes the oldest entries whose responses left the cache, at most 16 per call.
    pub fn forget_oldest(&mut self, is_kept: impl Fn(&CacheKey) -> bool) {
        for _ in 0..16 {
            let Some((context, key)) = self.order.front().copied().filter(|(_, key)| !is_kept(key)) else {
                return;
            };
            self.order.pop_front();
            self.forget(&context, &key);
        }
    }

    /// Removes the entry of a response that left the cache.
    pub fn forget(&mut self, context: &[u8; 32], key: &CacheKey) {
        let Some(entries) = self.contexts.get_mut(context) else { return };
        let before = entries.len();
        entries.retain(|entry| entry.key != *key);
        self.entries -= before - entries.len();
        if entries.is_empty() {
            self.contexts.remove(context);
        }
    }

    /// Returns the number of texts in the index.
    pub(crate) fn len(&self) -> usize {
        self.entries
    }
}

/// Returns the dot product. Eight partial sums let the compiler vectorise the loop.
fn dot(one: &[f32], other: &[f32]) -> f32 {
    let (mut sums, eights) = ([0.0f32; 8], one.chunks_exact(8).zip(other.chunks_exact(8)));
    for (a, b) in eights {
        for (sum, (a, b)) in sums.iter_mut().zip(a.iter().zip(b)) {
            *sum += a * b;
        }
    }
    let rest = one.len().min(other.len()) / 8 * 8;
    let rest: f32 = one[rest..].iter().zip(&other[rest..]).map(|(a, b)| a * b).sum();
    sums.iter().sum::<f32>() + rest
}

/// Returns the unit vector in the direction of `numbers`, or `None` for a zero, non-finite or oversized vector.
pub(crate) fn normalised(numbers: &[f32]) -> Option<Box<[f32]>> {
    let squares: f64 = numbers.iter().map(|x| f64::from(*x) * f64::from(*x)).sum();
    let length = squares.sqrt();
    let sound = length.is_finite() && length > 1e-12 && numbers.len() <= MOST_NUMBERS;
    sound.then(|| numbers.iter().map(|x| (f64::from(*x) / length) as f32).collect())
}

/// Returns the cosine similarity of two unit vectors, or `None` if their dimensions differ.
pub fn cosine(one: &[f32], other: &[f32]) -> Option<f64> {
    (one.len() == other.len()).then(|| f64::from(dot(one, other)))
}

#[cfg(test)]
mod tests {
    use plimsoll_math::rng::Stream;

    use super::*;

    #[test]
    fn the_nearest_is_the_one_with_the_greatest_cosine_of_its_own_context() {
        let mut stream = Stream::new(7, "vectors", 0);
        let mut vector =
            |numbers: usize| -> Vec<f32> { (0..numbers).map(|_| stream.uniform() as f32 - 0.5).collect() };
        for numbers in [1, 7, 8, 19, 384] {
            let mut index = Index::new(1_000);
            let all: Vec<Vec<f32>> = (0..50).map(|_| vector(numbers)).collect();
            for (number, one) in all.iter().enumerate() {
                index.insert(
                    [number as u8 % 2; 32],
                    [number as u8; 32],
                    normalised(one).expect("a direction"),
                );
            }
            let asked = vector(numbers);
            // The reference is the definition in double precision.
            let cosine = |one: &[f32]| -> f64 {
                let dot = |a: &[f32], b: &[f32]| {
                    a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>()
                };
                dot(one, &asked) / (dot(one, one) * dot(&asked, &asked)).sqrt()
            };
            let of_context = all.iter().enumerate().filter(|(number, _)| number % 2 == 1);
            let wanted = of_context.map(|(_, one)| cosine(one)).fold(f64::NEG_INFINITY, f64::max);
            let (found, key) =
                index.nearest(&[1; 32], &normalised(&asked).expect("a direction")).expect("one");
            assert!((found - wanted).abs() < 1e-6, "{found} and {wanted}");
            assert_eq!(key[0] % 2, 1);
            assert_eq!(index.nearest(&[2; 32], &[1.0]), None);
        }
    }

    #[test]
    fn it_holds_as_many_as_it_may_and_the_oldest_goes_first() {
        let mut index = Index::new(3);
        let vector = || normalised(&[1.0, 2.0]).expect("a direction");
        (0..5).for_each(|number| index.insert([number % 2; 32], [number; 32], vector()));
        assert_eq!((index.len(), index.order.len()), (3, 3));
        assert_eq!(index.nearest(&[0; 32], &vector()).map(|(_, key)| key[0]), Some(4));
        index.insert([0; 32], [4; 32], vector());
        assert_eq!(index.len(), 3, "the same once");
        index.forget(&[0; 32], &[4; 32]);
        index.forget(&[0; 32], &[4; 32]);
        assert_eq!(index.len(), 2);
        assert_eq!(index.nearest(&[1; 32], &[1.0]), None, "another model's");
        index.forget_oldest(|key| key[0] == 3);
        assert_eq!((index.len(), index.nearest(&[1; 32], &vector()).map(|(_, key)| key[0])), (1, Some(3)));
        (10..200).for_each(|number| index.insert([number; 32], [number; 32], vector()));
        assert_eq!((index.len(), index.order.len(), index.contexts.len()), (3, 3, 3));
    }

    #[test]
    fn what_has_no_direction_is_no_vector() {
        for numbers in [&[][..], &[0.0; 4], &[f32::NAN, 1.0], &[f32::INFINITY, 1.0], &[1.0; MOST_NUMBERS + 1]]
        {
            assert!(normalised(numbers).is_none(), "{} numbers", numbers.len());
        }
    }
}
