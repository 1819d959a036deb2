//! Stores a shared load's files in an object store: Amazon S3 and compatible stores, Google Cloud Storage, Azure.
//!
//! Credentials come from the sources of the clouds' own tools: the environment, or the identity of a pod or a machine.
//! None of them is printed or stored.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path as FilePath;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::{StreamExt, TryStreamExt, stream};
use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::buffered::BufWriter;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::path::Path;
use object_store::{
    BackoffConfig, Error, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload, RetryConfig,
};
use tokio::io::AsyncWriteExt;
use tokio::runtime::Runtime;

use super::connector::{Connector, LastStatus};
use super::url::{BucketUrl, Cloud};
use super::{RunStore, ShardStore, StoredObject};
use crate::exit::{Exit, Stop};

/// Retries of a failed request (connection error, 5xx, 429), and their total time limit.
const RETRIES: usize = 5;
const RETRY_FOR: Duration = Duration::from_secs(30);
/// Attempts of a conditional put that conflicts without a winner.
const PUTS: u32 = 5;
/// Bytes per read of a file and per sent part.
const CHUNK: usize = 4 << 20;

#[derive(Debug)]
pub struct ObjectBucket {
    store: Arc<dyn ObjectStore>,
    last: LastStatus,
    url: BucketUrl,
    /// Name in errors: the flag and the URL.
    name: String,
    runtime: Runtime,
}

impl ObjectBucket {
    /// Opens the bucket: fetches credentials once and lists once.
    ///
    /// # Errors
    /// There are no credentials, no such bucket, or no permission.
    pub fn open(flag: &str, url: BucketUrl) -> Result<ObjectBucket, Stop> {
        let name = format!("{flag} {}", url.text);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|e| Stop::invalid(format!("{name}: {e}")))?;
        let last = LastStatus::default();
        let store =
            runtime.block_on(store(&url, &last)).map_err(|why| Stop::usage(format!("{name}: {why}")))?;
        let bucket = ObjectBucket { store, last, url, name, runtime };
        let root = bucket.path("");
        let first = async { bucket.store.list(Some(&root)).try_next().await };
        bucket.runtime.block_on(first).map_err(|e| bucket.wrong(&e))?;
        Ok(bucket)
    }

    fn path(&self, name: &str) -> Path {
        let parts = [self.url.prefix.as_str(), name];
        Path::from_iter(parts.iter().flat_map(|part| part.split('/')).filter(|part| !part.is_empty()))
    }

    fn wrong(&self, error: &Error) -> Stop {
        let (why, name) = (cause(error), &self.name);
        match self.last.load(Ordering::Relaxed) {
            404 => Stop::usage(format!("{name}: there is no such bucket ({why})")),
            401 | 403 => Stop::unreachable(format!(
                "{name}: refused ({why}); is the key the right one, and may it list, read, write and delete there?"
            )),
            300..=399 => Stop::usage(format!(
                "{name}: the bucket is not in the region of AWS_REGION ({why}); set AWS_REGION"
            )),
            0 => Stop::unreachable(format!("{name}: the store can't be reached: {why}")),
            _ => Stop::unreachable(format!("{name}: {why}")),
        }
    }

    fn unread(&self, file: &FilePath, error: &io::Error) -> Stop {
        Stop::invalid(format!("{}: {}: {error}", self.name, file.display()))
    }
}

impl ShardStore for ObjectBucket {
    fn name(&self) -> &str {
        &self.url.text
    }

    fn poll(&self) -> Duration {
        Duration::from_millis(250)
    }

    fn put_new(&self, name: &str, bytes: &[u8]) -> Result<bool, Stop> {
        for _ in 0..PUTS {
            let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
            let payload = PutPayload::from(bytes.to_vec());
            match self.runtime.block_on(self.store.put_opts(&self.path(name), payload, options)) {
                Ok(_) => return Ok(true),
                // S3 returns 409 for two simultaneous puts, and then the file may be missing. If a response was lost on the way, the existing
                // file is the one that was sent here.
                Err(Error::AlreadyExists { .. } | Error::Precondition { .. }) => {
                    if let Some(there) = self.get(name)? {
                        return Ok(there == bytes);
                    }
                }
                Err(Error::Generic { .. }) => {}
                Err(error) => return Err(self.wrong(&error)),
            }
            std::thread::sleep(self.poll());
        }
        Err(Stop { exit: Exit::Unreachable, line: format!("{}: {name} can't be put", self.name) })
    }

    fn get(&self, name: &str) -> Result<Option<Vec<u8>>, Stop> {
        let got = async { self.store.get(&self.path(name)).await?.bytes().await };
        match self.runtime.block_on(got) {
            Ok(bytes) => Ok(Some(bytes.into())),
            Err(Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(self.wrong(&error)),
        }
    }
}

impl RunStore for ObjectBucket {
    fn put(&self, name: &str, bytes: Vec<u8>) -> Result<(), Stop> {
        let put = self.runtime.block_on(self.store.put(&self.path(name), bytes.into()));
        put.map(|_| ()).map_err(|e| self.wrong(&e))
    }

    fn put_file(&self, name: &str, file: &FilePath) -> Result<(), Stop> {
        let mut source = File::open(file).map_err(|e| self.unread(file, &e))?;
        let mut writer = BufWriter::new(Arc::clone(&self.store), self.path(name));
        self.runtime.block_on(async {
            loop {
                let mut bytes = Vec::with_capacity(CHUNK);
                let read = Read::by_ref(&mut source).take(CHUNK as u64).read_to_end(&mut bytes);
                if read.map_err(|e| self.unread(file, &e))? == 0 {
                    break;
                }
                writer.put(bytes.into()).await.map_err(|e| self.wrong(&e))?;
            }
            writer.shutdown().await.map_err(|e| match e.downcast::<Error>() {
                Ok(error) => self.wrong(&error),
                Err(error) => Stop::unreachable(format!("{}: {error}", self.name)),
            })
        })
    }

    fn list(&self, below: &str) -> Result<Vec<StoredObject>, Stop> {
        let prefix = self.path(below);
        let listed = self.runtime.block_on(self.store.list(Some(&prefix)).try_collect::<Vec<_>>());
        let root = self.path("");
        let mut objects: Vec<StoredObject> = listed
            .map_err(|e| self.wrong(&e))?
            .into_iter()
            .filter_map(|meta| {
                let parts: Vec<_> = meta.location.prefix_match(&root)?.collect();
                let parts: Vec<&str> = parts.iter().map(AsRef::as_ref).collect();
                Some(StoredObject { name: parts.join("/"), bytes: meta.size, tag: meta.e_tag })
            })
            .collect();
        objects.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(objects)
    }

    fn fetch(&self, name: &str, into: &mut File) -> Result<(), Stop> {
        let path = self.path(name);
        self.runtime.block_on(async {
            let got = self.store.get(&path).await.map_err(|e| self.wrong(&e))?;
            let mut stream = got.into_stream();
            while let Some(bytes) = stream.next().await {
                let bytes = bytes.map_err(|e| self.wrong(&e))?;
                into.write_all(&bytes).map_err(|e| Stop::invalid(format!("{name} of {}: {e}", self.name)))?;
            }
            Ok(())
        })
    }

    fn remove(&self, names: Vec<String>) -> Result<(), Stop> {
        let paths: Vec<_> = names.iter().map(|name| Ok(self.path(name))).collect();
        let removed = self.store.delete_stream(stream::iter(paths).boxed());
        let removed = self.runtime.block_on(removed.try_collect::<Vec<_>>());
        removed.map(|_| ()).map_err(|e| self.wrong(&e))
    }
}

/// Connects with the cloud's store and its credentials; the error is a sentence for the user.
async fn store(url: &BucketUrl, last: &LastStatus) -> Result<Arc<dyn ObjectStore>, String> {
    let authorities = said("AWS_CA_BUNDLE");
    let connector = Connector::new(authorities.as_deref(), Arc::clone(last)).map_err(|e| e.to_string())?;
    let retry = RetryConfig {
        backoff: BackoffConfig { max_backoff: Duration::from_secs(5), ..BackoffConfig::default() },
        max_retries: RETRIES,
        retry_timeout: RETRY_FOR,
    };
    match url.cloud {
        Cloud::S3 => {
            let keys = "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a role of the pod or the machine";
            let builder = AmazonS3Builder::from_env().with_bucket_name(&url.bucket).with_retry(retry);
            let plain = is_plain(&["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"]);
            let store = builder.with_allow_http(plain).with_http_connector(connector).build();
            let store = store.map_err(|e| unnamed(&e, keys))?;
            store.credentials().get_credential().await.map_err(|e| unnamed(&e, keys))?;
            Ok(Arc::new(store))
        }
        Cloud::Google => {
            let keys = "GOOGLE_SERVICE_ACCOUNT or GOOGLE_APPLICATION_CREDENTIALS, or an identity of the pod or the machine";
            let builder = GoogleCloudStorageBuilder::from_env().with_bucket_name(&url.bucket);
            let store = builder.with_retry(retry).with_http_connector(connector).build();
            let store = store.map_err(|e| unnamed(&e, keys))?;
            store.credentials().get_credential().await.map_err(|e| unnamed(&e, keys))?;
            Ok(Arc::new(store))
        }
        Cloud::Azure => {
            let keys = "AZURE_STORAGE_ACCOUNT_NAME, and AZURE_STORAGE_ACCOUNT_KEY or an identity of the pod or the machine";
            let builder =
                MicrosoftAzureBuilder::from_env().with_container_name(&url.bucket).with_retry(retry);
            let plain = is_plain(&["AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"]);
            let store = builder.with_allow_http(plain).with_http_connector(connector).build();
            let store = store.map_err(|e| unnamed(&e, keys))?;
            store.credentials().get_credential().await.map_err(|e| unnamed(&e, keys))?;
            Ok(Arc::new(store))
        }
    }
}

fn said(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|text| !text.is_empty())
}

/// Returns whether an endpoint of the environment starts with `http://`, which permits connections without TLS.
fn is_plain(endpoints: &[&str]) -> bool {
    endpoints.iter().filter_map(|name| said(name)).any(|url| url.starts_with("http://"))
}

/// Returns the error of a store that could not be set up, with the environment variables that it needs.
fn unnamed(error: &Error, keys: &str) -> String {
    format!("no credentials: set {keys} ({})", cause(error))
}

/// Returns the root cause in one line. Of an error page, only the code is included, because the rest may repeat sent data.
fn cause(error: &Error) -> String {
    let mut root: &dyn std::error::Error = error;
    while let Some(next) = root.source() {
        root = next;
    }
    let text = root.to_string();
    let (words, page) = text.find('<').map_or((text.as_str(), ""), |at| text.split_at(at));
    let code = page.split_once("<Code>").and_then(|(_, rest)| rest.split_once("</Code>"));
    let code = code.map(|(code, _)| code).filter(|code| code.chars().all(char::is_alphanumeric));
    let words = words.trim_start_matches("Server returned non-2xx status code: ");
    let words = words.lines().next().unwrap_or_default().trim_end_matches([':', ' ']);
    code.map_or_else(|| words.to_owned(), |code| format!("{words}, {code}"))
}
