//! TLS on both sides, with certificates made here. The replica of one gateway is another gateway, so that both sides
//! are real.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use plimsoll_client::tls::certs::Identity;
use plimsoll_client::tls::{TlsTrust, client_config_as};
use plimsoll_gateway::tls::{CertSpec, TlsSpec};
use plimsoll_gateway::{Gateway, GatewaySpec, PickerSpec, ReplicaSpec};
use rcgen::{BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;

use crate::kit::{ASK, Act, Mock, gateway, is_empty, request, until};

/// A certificate authority with a folder of its certificates.
struct Authority {
    folder: tempfile::TempDir,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Authority {
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.distinguished_name.push(DnType::CommonName, "authority");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        let folder = tempfile::tempdir().expect("a folder");
        let cert = params.self_signed(&key).expect("signed");
        std::fs::write(folder.path().join("ca.pem"), cert.pem()).expect("written");
        Authority { folder, issuer: Issuer::new(params, key) }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Returns a certificate for localhost, valid for servers and clients.
    fn sign(&self, name: &str) -> Identity {
        let mut params = CertificateParams::new(vec!["localhost".to_owned()]).expect("a name");
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate().expect("a key");
        let cert = params.signed_by(&key, &self.issuer).expect("signed");
        let own =
            Identity { cert: self.path(&format!("{name}.pem")), key: self.path(&format!("{name}.key")) };
        std::fs::write(&own.cert, cert.pem()).expect("written");
        std::fs::write(&own.key, key.serialize_pem()).expect("written");
        own
    }

    fn client(&self, own: Option<&Identity>) -> Arc<ClientConfig> {
        client_config_as(&TlsTrust::SystemAnd(self.path("ca.pem")), own, false).expect("sound")
    }
}

fn tls(own: &Identity, client_ca: Option<&Path>) -> TlsSpec {
    TlsSpec { cert: own.cert.clone(), key: own.key.clone(), client_ca: client_ca.map(Path::to_owned) }
}

/// Sends a request. Returns all received bytes, or the error.
fn ask(addr: SocketAddr, config: Arc<ClientConfig>) -> std::io::Result<String> {
    let name = ServerName::try_from("localhost").expect("a name");
    let connection = rustls::ClientConnection::new(config, name).map_err(std::io::Error::other)?;
    let socket = TcpStream::connect(addr)?;
    socket.set_read_timeout(Some(Duration::from_secs(20)))?;
    let mut stream = rustls::StreamOwned::new(connection, socket);
    stream.write_all(&request(ASK))?;
    let mut text = String::new();
    match stream.read_to_string(&mut text) {
        Err(error) if text.is_empty() => Err(error),
        _ => Ok(text),
    }
}

/// Connects as a proxy that uses the picker. Returns the negotiated protocol and the type of the first HTTP/2 frame.
fn first_frame(addr: SocketAddr, config: Arc<ClientConfig>) -> std::io::Result<(Option<Vec<u8>>, u8)> {
    let name = ServerName::try_from("localhost").expect("a name");
    let mut config = (*config).clone();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let connection = rustls::ClientConnection::new(Arc::new(config), name).map_err(std::io::Error::other)?;
    let socket = TcpStream::connect(addr)?;
    socket.set_read_timeout(Some(Duration::from_secs(20)))?;
    let mut stream = rustls::StreamOwned::new(connection, socket);
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0")?;
    let mut head = [0; 9];
    stream.read_exact(&mut head)?;
    Ok((stream.conn.alpn_protocol().map(<[u8]>::to_vec), head[3]))
}

#[test]
fn proxies_ask_over_tls_and_show_a_certificate_where_that_is_asked() {
    let (authority, mock) = (Authority::new(), Mock::new(Act::Silence));
    let (server, proxy) = (authority.sign("server"), authority.sign("proxy"));
    let gateway = gateway(&[&mock], |spec| {
        let mut picker = PickerSpec::new(([127, 0, 0, 1], 0).into());
        picker.tls = Some(tls(&server, Some(&authority.path("ca.pem"))));
        spec.picker = Some(picker);
    });
    let picker = gateway.picker.expect("asked for");
    let known = first_frame(picker, authority.client(Some(&proxy))).expect("it is let in");
    assert_eq!(known, (Some(b"h2".to_vec()), 4), "HTTP/2, whose first frame are settings");
    assert!(first_frame(picker, authority.client(None)).is_err(), "nobody without a certificate");
}

/// Returns a gateway whose clients need a certificate.
fn guarded(mock: &Mock, authority: &Authority) -> Gateway {
    gateway(&[mock], |spec| spec.tls = Some(tls(&authority.sign("server"), Some(&authority.path("ca.pem")))))
}

#[test]
fn both_sides_show_certificates_and_a_stream_passes_whole() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let mock = Mock::new(Act::Stream(50, Duration::from_millis(1)));
    let inner = guarded(&mock, &authority);
    let own = authority.sign("gateway");
    let mut spec = GatewaySpec {
        listen: SocketAddr::from(([127, 0, 0, 1], 0)),
        replicas: vec![ReplicaSpec::new(format!("https://localhost:{}", inner.addr.port()), None)],
        tls: Some(tls(&authority.sign("front"), Some(&authority.path("ca.pem")))),
        ca_file: Some(authority.path("ca.pem")),
        client_cert: Some(CertSpec { cert: own.cert, key: own.key }),
        threads: 1,
        ..GatewaySpec::default()
    };
    spec.health.every_s = 0.25;
    let outer = Gateway::start(&spec).expect("sound");
    until("the inner one answers", || outer.pool.is_up(0));
    let config = authority.client(Some(&authority.sign("client")));
    for _ in 0..3 {
        let text = ask(outer.addr, Arc::clone(&config)).expect("an answer");
        assert!(text.starts_with("HTTP/1.1 200"), "{text}");
        assert_eq!(text.matches("data: {").count(), 50);
        assert!(text.ends_with("0\r\n\r\n"));
    }
    let seen = mock.count();
    // Without a certificate, or with one of another authority, a request is rejected.
    assert!(ask(outer.addr, authority.client(None)).is_err());
    let theirs = stranger.sign("client");
    assert!(ask(outer.addr, authority.client(Some(&theirs))).is_err());
    assert_eq!(mock.count(), seen);
    is_empty(&outer);
    // A gateway without a client certificate is never accepted.
    spec.client_cert = None;
    let bare = Gateway::start(&spec).expect("sound");
    std::thread::sleep(Duration::from_millis(700));
    assert!(!bare.pool.is_up(0));
}

/// A client with an unknown certificate is accepted after its files are replaced, without a configuration change.
#[test]
fn a_certificate_that_is_replaced_is_shown_from_the_next_connection_on() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let mock = Mock::new(Act::Stream(3, Duration::ZERO));
    let gateway = guarded(&mock, &authority);
    let shown = stranger.sign("client");
    let config = authority.client(Some(&shown));
    assert!(ask(gateway.addr, Arc::clone(&config)).is_err());
    let own = authority.sign("other");
    std::fs::copy(&own.cert, &shown.cert).expect("replaced");
    std::fs::copy(&own.key, &shown.key).expect("replaced");
    until("the new one is shown", || ask(gateway.addr, Arc::clone(&config)).is_ok());
}

/// The client is curl, because users test with it.
#[test]
fn curl_takes_a_stream_over_mutual_tls() {
    let authority = Authority::new();
    let mock = Mock::new(Act::Stream(50, Duration::ZERO));
    let gateway = guarded(&mock, &authority);
    let own = authority.sign("client");
    let url = format!("https://localhost:{}/v1/completions", gateway.addr.port());
    let curl = |more: &[&std::ffi::OsStr]| {
        std::process::Command::new("curl")
            .args(["-sSN", "--max-time", "30", "-d", ASK, &url, "--cacert"])
            .arg(authority.path("ca.pem"))
            .args(more)
            .output()
            .expect("curl is installed")
    };
    let ended = curl(&["--cert".as_ref(), own.cert.as_ref(), "--key".as_ref(), own.key.as_ref()]);
    let text = String::from_utf8_lossy(&ended.stdout);
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    assert_eq!(text.matches("data: {").count(), 50);
    let bare = curl(&[]);
    assert!(!bare.status.success() && bare.stdout.is_empty());
    assert_eq!(mock.count(), 1);
}

/// A silent connection, or one without TLS, is closed after the timeout and delays no other.
#[test]
fn slow_and_foreign_handshakes_hold_nobody_up() {
    let authority = Authority::new();
    let mock = Mock::new(Act::Answer);
    let gateway = gateway(&[&mock], |spec| {
        spec.tls = Some(tls(&authority.sign("server"), None));
        spec.limits.handshake_s = 0.5;
    });
    let mut silent: Vec<TcpStream> =
        (0..50).map(|_| TcpStream::connect(gateway.addr).expect("it listens")).collect();
    let mut plain = TcpStream::connect(gateway.addr).expect("it listens");
    plain.write_all(&request(ASK)).expect("sent");
    let text = ask(gateway.addr, authority.client(None)).expect("an answer meanwhile");
    assert!(text.starts_with("HTTP/1.1 200"), "{text}");
    for socket in silent.iter_mut().chain([&mut plain]) {
        socket.set_read_timeout(Some(Duration::from_secs(20))).expect("a plain socket");
        let mut all = Vec::new();
        let _ = socket.read_to_end(&mut all);
        assert!(!all.starts_with(b"HTTP"), "no request is answered in the clear");
    }
    assert_eq!(mock.count(), 1);
}

#[test]
fn files_that_are_no_certificates_are_named() {
    let authority = Authority::new();
    let (one, other) = (authority.sign("one"), authority.sign("other"));
    let refused = |tls: TlsSpec| {
        let spec = GatewaySpec {
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            replicas: vec![ReplicaSpec::new("http://127.0.0.1:1", None)],
            tls: Some(tls),
            ..GatewaySpec::default()
        };
        match Gateway::start(&spec) {
            Ok(_) => panic!("it started"),
            Err(error) => error.to_string(),
        }
    };
    let missing = Identity { cert: authority.path("none.pem"), ..one.clone() };
    assert!(refused(tls(&missing, None)).contains("none.pem"));
    let swapped = Identity { cert: one.key.clone(), key: one.cert.clone() };
    assert!(refused(tls(&swapped, None)).contains("no certificate in it"));
    let keyless = Identity { key: one.cert.clone(), ..one.clone() };
    assert!(refused(tls(&keyless, None)).contains("no private key in it"));
    let mixed = Identity { key: other.key, ..one.clone() };
    assert!(refused(tls(&mixed, None)).contains("one.pem"));
    assert!(refused(tls(&one, Some(&one.key))).contains("certificate authorities"));
}
