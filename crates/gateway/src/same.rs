//! Content digests. SHA-256 is used, because no client may construct a collision with another client's content.

/// Returns the digest of the parts in order. Part boundaries contribute to the digest.
pub fn digest<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> [u8; 32] {
    let mut hash = ring::digest::Context::new(&ring::digest::SHA256);
    for part in parts {
        hash.update(&(part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    let mut name = [0; 32];
    name.copy_from_slice(hash.finish().as_ref());
    name
}
