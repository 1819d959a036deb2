//! URLs of object stores: `s3://bucket/prefix`, `gs://bucket/prefix`, `az://container/prefix`.

use std::path::Path;

/// The provider of an object store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cloud {
    /// Amazon S3 and compatible stores.
    S3,
    /// Google Cloud Storage (`gs://`).
    Google,
    /// Azure Blob Storage (`az://`).
    Azure,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BucketUrl {
    pub text: String,
    pub cloud: Cloud,
    /// Name of the bucket, or of Azure's container.
    pub bucket: String,
    /// Prefix of every object name; empty, or without a slash at both ends.
    pub prefix: String,
}

/// Returns whether `path` is the URL of an object store, supported or not, and not a folder.
pub fn is_url(path: &Path) -> bool {
    let text = path.to_string_lossy();
    let scheme = text.split_once("://").map(|(scheme, _)| scheme.to_owned());
    scheme.is_some_and(|scheme| !scheme.is_empty() && scheme.chars().all(|c| c.is_ascii_alphanumeric()))
}

impl BucketUrl {
    /// # Errors
    /// A sentence with the text and its defect.
    pub fn parse(text: &str) -> Result<BucketUrl, String> {
        let (scheme, rest) = text.split_once("://").unwrap_or_default();
        let cloud = match scheme {
            "s3" => Cloud::S3,
            "gs" => Cloud::Google,
            "az" => Cloud::Azure,
            // The part before an @ is left out, because it may be a secret and this line is printed.
            _ => {
                return Err(format!(
                    "{scheme}://…: a folder, s3://bucket/prefix, gs://bucket/prefix or az://container/prefix"
                ));
            }
        };
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if bucket.is_empty() || !bucket.chars().all(plain) {
            return Err(format!(
                "{scheme}://…: a bucket's name is letters, digits, - and .; keys come from the environment"
            ));
        }
        let prefix = prefix.trim_end_matches('/');
        let is_part = |part: &str| {
            !["", ".", ".."].contains(&part) && part.chars().all(|c| plain(c) || "=+,:@ ".contains(c))
        };
        if !prefix.is_empty() && !prefix.split('/').all(is_part) {
            return Err(format!("{text}: a prefix has no empty part, no .. and no special characters"));
        }
        let (text, bucket, prefix) = (text.to_owned(), bucket.to_owned(), prefix.to_owned());
        Ok(BucketUrl { text, cloud, bucket, prefix })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_and_a_prefix_are_read() {
        let url = |text: &str| BucketUrl::parse(text).map(|url| (url.cloud, url.bucket, url.prefix));
        assert_eq!(url("s3://load/monday/1/"), Ok((Cloud::S3, "load".into(), "monday/1".into())));
        assert_eq!(url("gs://load"), Ok((Cloud::Google, "load".into(), String::new())));
        assert_eq!(url("az://load/x"), Ok((Cloud::Azure, "load".into(), "x".into())));
        for wrong in [
            "s3://",
            "s3:///x",
            "s3://a//b",
            "s3://a/../b",
            "http://a/b",
            "s3://key:secret@a/b",
            "folder",
            "s3://a/b?x",
        ] {
            let why = url(wrong).expect_err(wrong);
            assert!(!why.contains("secret"), "{why}");
        }
        assert!(is_url(Path::new("ftp://x")) && is_url(Path::new("s3://x/y")));
        assert!(!is_url(Path::new("runs/x")) && !is_url(Path::new("/mnt/load://x")));
    }
}
