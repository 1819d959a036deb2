//! Buckets of about equal relative width in integer arithmetic: a value's highest bits, as in G. Tene's HdrHistogram.

/// Returns the bucket of a value, from its highest bit and the `bits` after it. Each value below `2 << bits` has a separate
/// bucket.
#[inline]
pub fn bucket(value: u64, bits: u32) -> usize {
    let shift = (63 - (value | 1).leading_zeros()).saturating_sub(bits);
    ((shift as usize) << bits) + (value >> shift) as usize
}

/// Returns the least value of a bucket.
pub fn floor(bucket: usize, bits: u32) -> u64 {
    let top = 1usize << bits;
    if bucket < 2 * top {
        return bucket as u64;
    }
    let shift = bucket / top - 1;
    ((bucket - shift * top) as u64) << shift
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_cover_every_value() {
        for bits in [2, 7, 10, 11] {
            for v in [0u64, 1, 2047, 2048, 4095, 4096, 4097, 1 << 40, (1 << 62) - 1, i64::MAX as u64] {
                let b = bucket(v, bits);
                assert!(floor(b, bits) <= v && floor(b + 1, bits) > v, "{v} of {bits} bits");
                assert!(floor(b + 1, bits) - floor(b, bits) <= 1 + (v >> bits), "{v} of {bits} bits");
            }
        }
    }
}
