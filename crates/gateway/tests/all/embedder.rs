//! A replica that embeds: vectors that are a matter of their input alone, so that whose they are is seen, and answers that are wrong on purpose.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;

/// What it does with a request for more than one input.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Manner {
    Right,
    /// The last input first.
    Reversed,
    /// One embedding fewer than inputs.
    Fewer,
    /// One more.
    More,
    /// Two of the same number.
    Twice,
    /// None is numbered.
    Unnumbered,
    /// Closes in the middle of the body.
    Cut,
    NotJson,
    /// 200, and an error in the body.
    Complains,
    /// Closes without a word.
    Hangs,
    /// This status.
    Refuses(u16),
    /// The body is packed, which nobody asked for.
    Packed,
}

#[derive(Clone, Debug)]
pub struct Embedder {
    pub manner: Manner,
    /// Texts with this in them can't be answered: this status, whoever else is in the request.
    pub poison: Option<(&'static str, u16)>,
    /// It answers nothing until this is open.
    pub gate: Arc<AtomicBool>,
    /// Time that a request takes, and each of its inputs.
    pub takes: (Duration, Duration),
    /// One request at a time.
    pub one: Arc<Mutex<()>>,
    /// Inputs of each request, in the order in which they came.
    pub seen: Arc<Mutex<Vec<usize>>>,
}

impl Embedder {
    pub fn new(manner: Manner) -> Embedder {
        Embedder {
            manner,
            poison: None,
            gate: Arc::new(AtomicBool::new(true)),
            takes: (Duration::ZERO, Duration::ZERO),
            one: Arc::default(),
            seen: Arc::default(),
        }
    }

    pub fn shut(self) -> Embedder {
        self.gate.store(false, Ordering::SeqCst);
        self
    }

    pub fn open(&self) {
        self.gate.store(true, Ordering::SeqCst);
    }

    pub fn requests(&self) -> Vec<usize> {
        self.seen.lock().expect("nobody panicked").clone()
    }

    /// What it says to a request, and whether it hangs up then.
    pub fn reply(&self, request: &[u8]) -> (Vec<u8>, bool) {
        let body = request.windows(4).position(|end| end == b"\r\n\r\n").map_or(0, |end| end + 4);
        let asked: Value = match serde_json::from_slice(&request[body..]) {
            Ok(asked) => asked,
            Err(_) => return (answer(400, "", "{\"error\":{\"message\":\"no JSON\"}}"), false),
        };
        let inputs = inputs(&asked);
        self.seen.lock().expect("nobody panicked").push(inputs.len());
        let began = Instant::now();
        while !self.gate.load(Ordering::SeqCst) {
            assert!(began.elapsed() < Duration::from_secs(60), "nobody opened it");
            sleep(Duration::from_millis(1));
        }
        let (each, input) = self.takes;
        if each + input > Duration::ZERO {
            let _one = self.one.lock().expect("nobody panicked");
            sleep(each + input * inputs.len() as u32);
        }
        if let Some((poison, status)) = self.poison
            && inputs.iter().any(|input| input.to_string().contains(poison))
        {
            return (answer(status, "", "{\"error\":{\"message\":\"poison\"}}"), false);
        }
        let manner = if inputs.len() > 1 { self.manner } else { Manner::Right };
        let mut data: Vec<String> = inputs
            .iter()
            .enumerate()
            .map(|(number, input)| {
                let index = match manner {
                    Manner::Twice => number / 2,
                    _ => number,
                };
                let index =
                    if manner == Manner::Unnumbered { String::new() } else { format!(",\"index\": {index}") };
                format!("{{\"embedding\":{}{index},\"object\":\"embedding\"}}", vector(input, &asked))
            })
            .collect();
        match manner {
            Manner::Reversed => data.reverse(),
            Manner::Fewer => drop(data.pop()),
            Manner::More => data.push(data[0].clone()),
            Manner::Hangs => return (Vec::new(), true),
            Manner::NotJson => return (answer(200, "", "<html>busy</html>"), false),
            Manner::Complains => {
                return (answer(200, "", "{\"error\":{\"message\":\"x\"},\"data\":[]}"), false);
            }
            Manner::Refuses(status) => {
                return (answer(status, "", "{\"error\":{\"message\":\"refused\"}}"), false);
            }
            _ => {}
        }
        let tokens: usize = inputs.iter().map(tokens).sum();
        let packed = if manner == Manner::Packed { "content-encoding: gzip\r\n" } else { "" };
        let body = format!(
            "{{\"object\": \"list\",\"data\":[{}],\"model\":{},\"usage\":{{\"prompt_tokens\":{tokens},\"total_tokens\":{tokens}}},\"id\":\"e-1\"}}",
            data.join(", "),
            asked["model"]
        );
        let mut all = answer(200, packed, &body);
        if manner == Manner::Cut {
            all.truncate(all.len() - 40);
        }
        (all, manner == Manner::Cut)
    }
}

fn answer(status: u16, header: &str, body: &str) -> Vec<u8> {
    format!(
        "HTTP/1.1 {status} X\r\ncontent-type: application/json\r\n{header}content-length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

/// The inputs of a request: texts, or lists of tokens.
pub fn inputs(asked: &Value) -> Vec<Value> {
    match &asked["input"] {
        Value::Array(list) if list.iter().all(|one| !one.is_number()) => list.clone(),
        one => vec![one.clone()],
    }
}

/// Tokens as it counts them: words, or the tokens themselves.
pub fn tokens(input: &Value) -> usize {
    match input {
        Value::Array(list) => list.len(),
        text => text.as_str().unwrap_or_default().split_whitespace().count().max(1),
    }
}

/// The vector of an input as it is written: a matter of its text and of the request's form, with numbers that a reader would write otherwise.
pub fn vector(input: &Value, asked: &Value) -> String {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for byte in input.to_string().bytes() {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    }
    let many = asked["dimensions"].as_u64().unwrap_or(4);
    let numbers = (0..many).map(|n| hash.rotate_left(n as u32 * 7) % 1_000_000);
    if asked["encoding_format"] == "base64" {
        let text: String = numbers.map(|number| format!("{number:06}")).collect();
        return format!("\"{text}+/==\"");
    }
    let numbers: Vec<String> = numbers.map(|number| format!("-0.{number:06}0e-1")).collect();
    format!("[{}]", numbers.join(" ,"))
}
