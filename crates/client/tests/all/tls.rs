//! TLS: the same stamps below it, and three ways to judge a certificate.

use std::path::Path;
use std::sync::Arc;

use plimsoll_client::Control;
use plimsoll_model::{By, How, Span};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::rig::{Rig, run_on};
use crate::server::{Seen, Server, Step, good, write};

fn fixture(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(name).display().to_string()
}

fn server() -> Server {
    server_that(|_| vec![good()])
}

/// One that follows this script.
pub fn server_that(script: impl Fn(&Seen) -> Vec<Step> + Send + Sync + 'static) -> Server {
    let certs =
        CertificateDer::pem_file_iter(fixture("server.pem")).unwrap().collect::<Result<_, _>>().unwrap();
    let key = PrivateKeyDer::from_pem_file(fixture("server.key")).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(certs, key)
        .unwrap();
    Server::start(script, Some(Arc::new(config)))
}

fn rig_without_authority(server: &Server) -> Rig {
    Rig::at(format!("https://localhost:{}/v1", server.addr.port()))
}

/// One that knows the server's authority.
pub fn rig(server: &Server) -> Rig {
    let mut rig = rig_without_authority(server);
    rig.target.ca_file = Some(fixture("ca.pem"));
    rig
}

#[test]
fn an_authority_the_user_names_is_trusted_and_stamps_stay_the_kernels() {
    let server = server();
    let row = rig(&server).one();
    assert!(row.outcome.is_finished(), "{row:#?}");
    assert_eq!(row.kernel_stamps, plimsoll_client::tcp::kernel_stamps_available());
    assert_eq!(row.answer.tokens.output, Some(3));
    let stamps =
        [row.connected, row.sent, row.first_byte, row.first_token, row.end].map(|at| at.expect("reached"));
    assert!(stamps.is_sorted(), "{stamps:?}");
}

#[test]
fn a_connection_is_kept_though_the_server_sends_tickets_after_its_handshake() {
    let server = server();
    let rig = rig(&server);
    let client = rig.start();
    for reused in [false, true] {
        let (_, rows) = run_on(&client, &rig.plan(&[Span::ZERO]), &Control::default());
        assert!(rows[0].outcome.is_finished() && rows[0].reused == reused, "{:#?}", rows[0]);
    }
    assert_eq!(server.accepted(), 1);
}

#[test]
fn an_unknown_authority_is_refused_by_name_unless_told_to_accept_anything() {
    let server = server();
    let row = rig_without_authority(&server).one();
    assert_eq!((row.outcome.how, row.outcome.by), (How::Refused, By::Network), "{row:#?}");
    assert!(
        row.answer.error.as_deref().is_some_and(|e| e.contains("TLS") && e.contains("certificate")),
        "{row:#?}"
    );
    let mut rig = rig_without_authority(&server);
    rig.target.tls_verify = false;
    assert!(rig.one().outcome.is_finished());
}

#[test]
fn a_server_that_speaks_no_tls() {
    let plain = Server::plain(|_| vec![write("HTTP/1.1 400 Bad Request\r\n\r\n"), Step::Close]);
    let mut rig = Rig::at(format!("https://{}/v1", plain.addr));
    rig.client.timeouts.connect = crate::rig::ms(500);
    let row = rig.one();
    assert!(matches!(row.outcome.how, How::Refused | How::Timeout), "{row:#?}");
    assert!(row.sent.is_none());
}

#[test]
fn a_file_that_is_no_certificate_is_told() {
    let mut rig = Rig::at("https://localhost/v1");
    rig.target.ca_file = Some(fixture("README.md"));
    let target = plimsoll_client::Target::new(&rig.target, None);
    assert!(target.expect_err("refused").to_string().contains("README.md"));
}
