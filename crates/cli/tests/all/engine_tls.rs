//! The embedded engine over TLS with independent clients: curl, openssl and Triton's Python client (grpcio). Our own
//! client follows; its rows must match the engine's log.

use std::path::Path;
use std::process::{Command, Stdio};

use rcgen::{BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};

use crate::engine_grpc::{agrees, asked_by_triton, authority, profile};
use crate::kit::{Engine, plimsoll};

/// An authority, with a certificate for the engine and one for a client.
struct Certs(tempfile::TempDir);

impl Certs {
    fn new() -> Certs {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let write =
            |name: &str, text: String| std::fs::write(folder.path().join(name), text).expect("written");
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        // The issuer has another name, because OpenSSL treats a certificate issued under its own name as self-signed.
        params.distinguished_name.push(DnType::CommonName, "authority");
        let key = KeyPair::generate().expect("a key");
        write("ca.pem", params.self_signed(&key).expect("signed").pem());
        let issuer = Issuer::new(params, key);
        for (name, usage) in
            [("server", ExtendedKeyUsagePurpose::ServerAuth), ("client", ExtendedKeyUsagePurpose::ClientAuth)]
        {
            let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
            let mut params = CertificateParams::new(names).expect("names");
            params.extended_key_usages = vec![usage];
            let key = KeyPair::generate().expect("a key");
            write(&format!("{name}.pem"), params.signed_by(&key, &issuer).expect("signed").pem());
            write(&format!("{name}.key"), key.serialize_pem());
        }
        Certs(folder)
    }

    fn file(&self, name: &str) -> String {
        self.0.path().join(name).to_str().expect("utf-8").to_owned()
    }

    fn flags(&self) -> [String; 4] {
        ["--tls-cert".into(), self.file("server.pem"), "--tls-key".into(), self.file("server.key")]
    }
}

fn borrowed(flags: &[String]) -> Vec<&str> {
    flags.iter().map(String::as_str).collect()
}

#[test]
fn curl_and_openssl_choose_the_version() {
    let certs = Certs::new();
    let engine = Engine::start_with("demo", &borrowed(&certs.flags()));
    assert!(engine.url.starts_with("https://"), "{}", engine.url);
    let curl = |more: &[&str]| {
        let ran = Command::new("curl")
            .args(["-sSN", "-w", "\n%{http_version} %{http_code}", "--cacert", &certs.file("ca.pem")])
            .args(more)
            .args(["-d", r#"{"messages":[{"role":"user","content":"hello"}],"max_tokens":5,"stream":true}"#])
            .arg(format!("{}/chat/completions", engine.url))
            .output()
            .expect("curl starts");
        String::from_utf8(ran.stdout).expect("text")
    };
    let chunks = |text: &str| text.matches("data: {").count();
    for (more, version) in [(&["--http1.1"][..], "1.1"), (&["--http2"], "2"), (&["--no-alpn"], "1.1")] {
        let text = curl(more);
        assert!(text.ends_with(&format!("\n{version} 200")), "{more:?}: {text}");
        assert!(chunks(&text) >= 5 && text.contains("data: [DONE]"), "{more:?}: {text}");
    }
    let agreed = |offers: &str| {
        let ran = Command::new("openssl")
            .args(["s_client", "-connect", authority(&engine), "-alpn", offers])
            .stdin(Stdio::null())
            .output()
            .expect("openssl starts");
        String::from_utf8_lossy(&ran.stdout).into_owned()
    };
    assert!(agreed("http/1.1,h2").contains("ALPN protocol: h2"));
    assert!(agreed("http/1.1").contains("ALPN protocol: http/1.1"));
    assert!(!agreed("spdy/3").contains("ALPN protocol:"));
}

#[test]
fn tritons_own_client_is_answered_over_tls() {
    let certs = Certs::new();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let engine = Engine::start_with(&profile(&folder), &borrowed(&certs.flags()));
    let Some(told) = asked_by_triton(&engine, &[&certs.file("ca.pem")]) else { return };
    assert_eq!(told["server"], "plimsoll-engine");
    assert_eq!(told["unary"].as_array().map(Vec::len), Some(20), "{told}");
    assert_eq!(told["streamed"].as_array().map(Vec::len), Some(20), "{told}");
    assert_eq!(told["health"], serde_json::json!([8, 1]));
}

#[test]
fn our_own_rows_over_tls_are_what_the_engine_logged() {
    let certs = Certs::new();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (batcher, flags, ca) = (profile(&folder), certs.flags(), certs.file("ca.pem"));
    let flags = borrowed(&flags);
    let check = |target: &str, more: &[&str], profile: &str, streams| {
        agrees(target, &[&["--ca-file", &ca], more].concat(), (profile, &flags), streams);
    };
    check("https://HOST/v1", &["--osl", "8"], "demo", true);
    check("https://HOST/v1", &["--http", "2", "--osl", "8"], "demo", true);
    check("grpcs://HOST", &["--batch", "2"], &batcher, false);
    check("grpcs://HOST", &["--batch", "2", "--set", "target.stream=true"], &batcher, true);
}

#[test]
fn who_shows_no_certificate_is_not_let_in_where_one_is_asked_for() {
    let certs = Certs::new();
    let (flags, authorities) = (certs.flags(), certs.file("ca.pem"));
    let flags = [borrowed(&flags), vec!["--tls-client-ca", &authorities]].concat();
    let own = [certs.file("client.pem"), certs.file("client.key")];
    let more = ["--ca-file", &authorities, "--http", "2", "--osl", "8"];
    let shows = ["--client-cert", &own[0], "--client-key", &own[1]];
    agrees("https://HOST/v1", &[&more[..], &shows].concat(), ("demo", &flags), true);
    let engine = Engine::start_with("demo", &flags);
    for version in ["1.1", "2"] {
        let ended =
            plimsoll(&["run", &engine.url, "--wave", "1", "--ca-file", &authorities, "--http", version]);
        assert!(ended.code == 5 && ended.stderr.contains("--client-cert"), "{} {}", ended.code, ended.stderr);
    }
    // A client that does not trust the engine's issuer is refused too.
    let ended = plimsoll(&[&["run", &engine.url, "--wave", "1"], &shows[..]].concat());
    assert!(ended.code == 5 && ended.stderr.contains("--ca-file"), "{} {}", ended.code, ended.stderr);
}

#[test]
fn files_that_are_no_certificates_are_named() {
    let certs = Certs::new();
    let [cert, key, ca, other] =
        ["server.pem", "server.key", "ca.pem", "client.key"].map(|name| certs.file(name));
    let refused = |flags: &[&str], names: &str| {
        let ended = plimsoll(&[&["engine", "--listen", "127.0.0.1:0"], flags].concat());
        assert!(ended.code == 2 && ended.stderr.contains(names), "{} {}", ended.code, ended.stderr);
        assert!(!ended.stderr.contains("PRIVATE"), "{}", ended.stderr);
    };
    refused(&["--tls-cert", &cert], "--tls-key");
    refused(&["--tls-client-ca", &ca], "--tls-key");
    refused(&["--tls-cert", "none.pem", "--tls-key", &key], "none.pem");
    refused(&["--tls-cert", &key, "--tls-key", &key], "no certificate in it");
    refused(&["--tls-cert", &cert, "--tls-key", &cert], "no private key in it");
    refused(&["--tls-cert", &cert, "--tls-key", &other], "server.pem");
    refused(&["--tls-cert", &cert, "--tls-key", &key, "--tls-client-ca", &key], "authorities");
    assert!(Path::new(&cert).exists());
}
