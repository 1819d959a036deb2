//! Sees whether replicas answer, and whether their streams move.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{AUTHORIZATION, HOST};
use http::{Request, Uri};
use http_body_util::{BodyExt, Full};
use plimsoll_model::Span;

use crate::pool::{Pool, Replica};
use crate::rules::{InForce, Rules};
use crate::upstream::{Upstreams, soon};

/// Between two looks at a replica that does not answer, and at the streams.
const OFTEN: Span = Span::from_millis(250);
/// Failed looks one after another that make a replica one that does not answer. A refused connection of a request does so at once.
const FAILED: u32 = 2;
/// What of a health page is read.
const MOST_PAGE: usize = 64 << 10;

/// Looks at one replica for ever.
pub async fn probe(pool: Arc<Pool>, upstreams: Rc<Upstreams>, replica: u32, rules: Arc<InForce>) {
    let mut failed = 0;
    let mut due = pool.clock.now();
    loop {
        let rules = rules.now();
        let every = Span::from_secs_f64(rules.health.every_s);
        let now = pool.clock.now();
        if now >= due || !pool.is_up(replica) {
            let answers = ask(&pool, &upstreams, replica, &rules).await;
            failed = if answers { 0 } else { failed + 1 };
            if answers || failed >= FAILED {
                pool.set_up(replica, answers);
            }
            due = pool.clock.now() + every;
        }
        tokio::time::sleep_until(soon(OFTEN.min(every))).await;
    }
}

async fn ask(pool: &Pool, upstreams: &Rc<Upstreams>, replica: u32, rules: &Rules) -> bool {
    let spec = &rules.health;
    let Replica { place, name, .. } = &pool.replicas[replica as usize];
    let bearer = rules.bearer(name);
    let Ok(path) = format!("{}{}", place.base, spec.path).parse::<Uri>() else { return false };
    let request = || {
        let mut request = Request::new(Full::new(Bytes::new()));
        *request.uri_mut() = path.clone();
        if let Ok(host) = place.authority.as_str().parse() {
            request.headers_mut().insert(HOST, host);
        }
        if let Some(bearer) = bearer {
            request.headers_mut().insert(AUTHORIZATION, bearer.clone());
        }
        request
    };
    let asking = async {
        let (response, lent) = upstreams.send(replica, request).await.ok()?;
        let status = response.status().as_u16();
        let page = http_body_util::Limited::new(response.into_body(), MOST_PAGE).collect().await;
        if page.is_ok() {
            lent.give_back();
        }
        Some(status)
    };
    let answered = tokio::time::timeout(Duration::from_secs_f64(spec.timeout_s), asking).await;
    matches!(answered, Ok(Some(status)) if status < 500)
}

/// Looks for silent replicas for ever.
pub async fn listen(pool: Arc<Pool>) {
    loop {
        tokio::time::sleep_until(soon(OFTEN)).await;
        pool.look_for_silence();
    }
}
