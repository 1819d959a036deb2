//! Tests texts: requested lengths, sharing measured from the text itself, salts, files.

use std::collections::{HashMap, HashSet};
use std::hash::{Hash, Hasher};

use plimsoll_model::{Payload, Protocol, Role, Span};
use plimsoll_workload::{
    Arrival, Documents, Pause, PromptSpec, Prompts, Scenario, Schedule, SessionSpec, SharedPrefix, Size,
    prompts::hash_blocks, words::WORDS,
};

use crate::trace::replay;

const MOONCAKE: &[u8] = include_bytes!("../../fixtures/mooncake_200.jsonl");

fn scenario(prompts: PromptSpec, prompt: &str) -> Scenario {
    let mut s = Scenario { prompts, seed: 3, nonce: Some(1), ..Scenario::default() };
    s.sizes.prompt = Size::parse(prompt).unwrap();
    s.sizes.output = Size::Fixed(9);
    s
}

fn arrivals(s: &Scenario, n: i64, level: u32) -> Vec<Arrival> {
    Schedule::generate(s, 100.0, Span::from_millis(10 * n), level).unwrap().arrivals
}

fn words(payload: &Payload) -> Vec<String> {
    let texts: Vec<&str> = match payload {
        Payload::Text(text) => vec![text],
        Payload::Tensors(_) | Payload::Sound(_) => Vec::new(),
        Payload::Documents { query, documents } => {
            std::iter::once(query).chain(documents).map(String::as_str).collect()
        }
        Payload::Messages(messages) => messages.iter().map(|m| m.content.as_str()).collect(),
    };
    texts.iter().flat_map(|t| t.split_whitespace()).map(str::to_string).collect()
}

/// Returns the share of tokens whose whole prefix was seen before, counted on the words.
fn reuse(texts: &[Vec<String>]) -> f64 {
    #[derive(Default)]
    struct Node(HashMap<String, Node>);
    let (mut root, mut hit, mut all) = (Node::default(), 0, 0);
    for text in texts {
        let (mut node, mut seen) = (&mut root, true);
        for word in text {
            seen = seen && node.0.contains_key(word);
            hit += usize::from(seen);
            all += 1;
            node = node.0.entry(word.clone()).or_default();
        }
    }
    hit as f64 / all as f64
}

#[test]
fn the_vocabulary_is_256_different_short_words() {
    let set: HashSet<&str> = WORDS.into_iter().collect();
    assert_eq!(set.len(), 256);
    assert!(WORDS.iter().all(|w| w.len() <= 8 && w.bytes().all(|b| b.is_ascii_lowercase())));
}

#[test]
fn a_prompt_has_as_many_words_as_tokens_were_asked() {
    let s = scenario(PromptSpec::default(), "uniform:1,300");
    let prompts = Prompts::new(&s, 5).unwrap();
    for a in arrivals(&s, 100, 0) {
        let (payload, blocks) = prompts.render(&a);
        assert_eq!(words(&payload).len(), a.prompt_tokens as usize);
        assert_eq!(blocks.len(), a.prompt_tokens as usize / 16);
        assert_eq!((prompts.payload(&a), prompts.blocks(&a)), (payload, blocks));
    }
}

#[test]
fn a_prompt_leaves_room_for_the_servers_template() {
    let spec = PromptSpec { template_tokens: 20, words_per_token: 0.5, ..PromptSpec::default() };
    let s = scenario(spec, "uniform:1,300");
    let prompts = Prompts::new(&s, 5).unwrap();
    for a in arrivals(&s, 100, 0) {
        let asked = (f64::from(a.prompt_tokens.saturating_sub(20)) * 0.5).round().max(1.0) as usize;
        assert_eq!(words(&prompts.payload(&a)).len(), asked);
    }
}

#[test]
fn prompts_are_a_function_of_spec_seed_nonce_and_arrival() {
    let s = scenario(PromptSpec::default(), "200");
    let a = &arrivals(&s, 10, 0)[4];
    let text = |s: &Scenario, a: &Arrival| words(&Prompts::new(s, 0).unwrap().payload(a));
    assert_eq!(text(&s, a), text(&s, a));
    let first16 = |s: &Scenario, a: &Arrival| text(s, a)[..16].to_vec();
    let level = Arrival { level: 1, ..a.clone() };
    let id = Arrival { id: 5, ..a.clone() };
    let nonce = Scenario { nonce: Some(2), ..s.clone() };
    let seed = Scenario { seed: 4, ..s.clone() };
    let others = [first16(&s, &level), first16(&s, &id), first16(&nonce, a), first16(&seed, a)];
    assert!(others.iter().all(|o| *o != first16(&s, a)));
    // Without salt, the nonce has no effect.
    let plain = |nonce| {
        let mut s = scenario(PromptSpec { salt: false, ..PromptSpec::default() }, "200");
        s.nonce = nonce;
        text(&s, a)
    };
    assert_eq!(plain(Some(1)), plain(Some(2)));
}

#[test]
fn the_shared_part_is_what_was_asked() {
    for share in [0.25, 0.9] {
        let shared_prefix = Some(SharedPrefix { groups: 4, share });
        let s = scenario(PromptSpec { shared_prefix, ..PromptSpec::default() }, "400");
        let prompts = Prompts::new(&s, 5).unwrap();
        let list = arrivals(&s, 1_000, 0);
        let texts: Vec<_> = list.iter().map(|a| words(&prompts.payload(a))).collect();
        // All but the first of each group hit their whole share; of the rest a word in 256 agrees at random.
        let expected = share * (1.0 - 4.0 / list.len() as f64);
        assert!((reuse(&texts) - expected).abs() < 0.002, "{} {expected}", reuse(&texts));
        let groups: HashSet<Vec<String>> = texts.iter().map(|t| t[..100].to_vec()).collect();
        assert_eq!(groups.len(), 4);
        // Equal groups at another level, other groups in another run.
        let next = Prompts::new(&s, 5).unwrap();
        let again: HashSet<Vec<String>> =
            arrivals(&s, 300, 1).iter().map(|a| words(&next.payload(a))[..100].to_vec()).collect();
        assert_eq!(groups, again);
        let run2 = Prompts::new(&Scenario { nonce: Some(2), ..s.clone() }, 5).unwrap();
        assert!(list.iter().all(|a| !groups.contains(&words(&run2.payload(a))[..100])));
    }
}

#[test]
fn shared_share_holds_for_each_length() {
    let shared_prefix = Some(SharedPrefix { groups: 1, share: 0.5 });
    let s = scenario(PromptSpec { shared_prefix, ..PromptSpec::default() }, "uniform:32,512");
    let prompts = Prompts::new(&s, 5).unwrap();
    let list = arrivals(&s, 200, 0);
    let longest = list.iter().max_by_key(|a| a.prompt_tokens).unwrap();
    let root = words(&prompts.payload(longest));
    for a in &list {
        let text = words(&prompts.payload(a));
        let common = text.iter().zip(&root).take_while(|(a, b)| a == b).count();
        let asked = (text.len() as f64 * 0.5).round() as usize;
        assert!(a.id == longest.id || (asked..asked + 3).contains(&common), "{common} of {}", text.len());
    }
}

#[test]
fn trace_blocks_share_text_exactly_where_their_ids_do() {
    let s = replay(MOONCAKE, None, Some(10.0));
    let list = Schedule::generate(&s, 10.0, Span::from_secs(20), 0).unwrap().arrivals;
    let prompts = Prompts::new(&s, 77).unwrap();
    let (mut seen_ids, mut seen_hashes) = (HashSet::new(), HashSet::new());
    let (mut hit, mut expected, mut chains) = (0, 0, HashMap::new());
    for a in &list {
        let (payload, hashes) = prompts.render(a);
        let text = words(&payload);
        assert_eq!(text.len(), a.prompt_tokens as usize);
        let mut prefix = std::hash::DefaultHasher::new();
        for (block, id) in text.chunks(512).zip(&a.blocks) {
            // Equal id ⇔ equal text up to the block's end, because the publisher chained the ids.
            block.hash(&mut prefix);
            assert_eq!(*chains.entry(*id).or_insert(prefix.finish()), prefix.finish());
        }
        // Full 16-blocks inside the ids that were seen before.
        let mut left = text.len();
        for id in &a.blocks {
            let here = left.min(512);
            left -= here;
            expected += if seen_ids.contains(id) { here / 16 } else { 0 };
            seen_ids.insert(*id);
        }
        hit += hashes.iter().filter(|h| seen_hashes.contains(*h)).count();
        seen_hashes.extend(hashes);
    }
    // 164 864 tokens hit, computed from the file; each hit block here is complete.
    assert_eq!((hit, expected), (164_864 / 16, 164_864 / 16));
    assert_eq!(chains.values().collect::<HashSet<_>>().len(), chains.len());
    // The next level has other text.
    let other = prompts.blocks(&Arrival { level: 1, ..list[0].clone() });
    assert!(other.iter().all(|h| !seen_hashes.contains(h)));
}

#[test]
fn a_conversation_carries_what_went_before() {
    let sessions = Some(SessionSpec { turns: Size::Fixed(3), think: Pause::Fixed(Span::from_millis(1)) });
    let s = scenario(PromptSpec { sessions, ..PromptSpec::default() }, "uniform:20,60");
    let prompts = Prompts::new(&s, 5).unwrap();
    let mut list: Vec<Arrival> = arrivals(&s, 400, 0).into_iter().filter(|a| a.session == Some(2)).collect();
    list.sort_by_key(|a| a.turn);
    let payloads: Vec<Payload> = list.iter().map(|a| prompts.payload(a)).collect();
    assert_eq!(payloads.len(), 3);
    for (a, payload) in list.iter().zip(&payloads) {
        assert_eq!(words(payload).len(), a.prompt_tokens as usize);
    }
    let Payload::Messages(last) = &payloads[2] else { panic!("chat carries messages") };
    let Payload::Messages(before) = &payloads[1] else { panic!("chat carries messages") };
    assert_eq!(last[..3], before[..]);
    let roles: Vec<Role> = last.iter().map(|m| m.role).collect();
    assert_eq!(roles, [Role::User, Role::Assistant, Role::User, Role::Assistant, Role::User]);
    assert_eq!(last[1].content.split_whitespace().count(), 9);
    let (two, three) = (prompts.blocks(&list[1]), prompts.blocks(&list[2]));
    assert_eq!(three[..two.len()], two[..]);
}

#[test]
fn protocols_without_messages_get_one_text() {
    let mut s = scenario(PromptSpec::default(), "40");
    s.target.protocol = Protocol::Completions;
    let a = &arrivals(&s, 50, 0)[0];
    let text = Prompts::new(&s, 5).unwrap().payload(a);
    assert!(matches!(&text, Payload::Text(t) if t.split_whitespace().count() == 40));
    s.target.protocol = Protocol::Chat;
    assert_eq!(words(&Prompts::new(&s, 5).unwrap().payload(a)), words(&text));
}

#[test]
fn hashes_are_keyed_and_chained() {
    let s = scenario(PromptSpec::default(), "64");
    let a = &arrivals(&s, 50, 0)[0];
    let one = Prompts::new(&s, 1).unwrap().blocks(a);
    assert_ne!(one, Prompts::new(&s, 2).unwrap().blocks(a));
    // Computed separately: SipHash-2-4 of parent and words under (key, "pl-block").
    let text = words(&Prompts::new(&s, 1).unwrap().payload(a));
    let mut parent = 0u64;
    for (block, hash) in text.chunks(16).zip(&one) {
        let mut bytes = parent.to_le_bytes().to_vec();
        bytes.extend(block.iter().flat_map(|w| w.bytes().chain([b' '])));
        let mut key = [0u8; 16];
        key[..8].copy_from_slice(&1u64.to_le_bytes());
        key[8..].copy_from_slice(b"pl-block");
        parent = siphasher::sip::SipHasher24::new_with_key(&key).hash(&bytes);
        assert_eq!(parent, *hash);
    }
}

#[test]
fn any_white_space_parts_words() {
    let words: Vec<String> = (0..20).map(|i| format!("w{i}é")).collect();
    let hash = |sep: &str, words: &[String]| hash_blocks(&Payload::Text(words.join(sep)), 4);
    let plain: Vec<String> = words.iter().map(|w| w.replace('é', "e")).collect();
    for sep in [" ", "\n", "\t \r\n", "\u{b}", "\u{a0}", "\u{2003} "] {
        assert_eq!((hash(sep, &words), hash(sep, &words).len()), (hash(" ", &words), 1));
        assert_eq!(hash(sep, &plain), hash(" ", &plain));
    }
    assert_ne!(hash(" ", &words), hash(" ", &plain));
}

#[test]
fn prompts_from_a_file_are_sent_as_they_are_behind_the_salt() {
    let file = "{\"prompt\": \"One two three.\"}\n\n{\"messages\": [{\"role\": \"system\", \"content\": \"Be brief.\"}, \
                {\"role\": \"user\", \"content\": \"Why?\"}], \"output_tokens\": 77}\n";
    let mut s = scenario(PromptSpec { file: Some("p.jsonl".into()), ..PromptSpec::default() }, "400");
    s.attach(|_| Ok(file.into())).unwrap();
    let list = arrivals(&s, 20, 0);
    assert_eq!((list[0].prompt_tokens, list[0].output_tokens), (7, 9));
    assert_eq!((list[1].prompt_tokens, list[1].output_tokens), (7, 77));
    let prompts = Prompts::new(&s, 1).unwrap();
    let Payload::Messages(m) = prompts.payload(&list[1]) else { panic!("chat carries messages") };
    assert_eq!((m.len(), m[1].content.as_str()), (2, "Why?"));
    let (salt, rest) = m[0].content.split_once('\n').unwrap();
    assert_eq!((salt.split(' ').count(), rest), (4, "Be brief."));
    let Payload::Messages(first) = prompts.payload(&list[0]) else { panic!("chat carries messages") };
    assert_eq!(first[0].content, format!("{salt}\nOne two three."));
    s.prompts.salt = false;
    let bare = Prompts::new(&s, 1).unwrap().payload(&arrivals(&s, 20, 0)[0]);
    assert_eq!(words(&bare), ["One", "two", "three."]);

    for (broken, line) in [
        ("{\"prompt\": \"a\"}\n{\"promt\": \"b\"}", 2),
        ("{\"prompt\": \"a\"}\n\n{}", 3),
        ("{\"prompt\": \"a\", \"messages\": []}", 1),
        ("{\"messages\": []}", 1),
        ("{\"messages\": [{\"role\": \"robot\", \"content\": \"x\"}]}", 1),
        ("{\"prompt\": \"a\", \"output_tokens\": 0}", 1),
        ("{\"prompt\": 5}", 1),
        ("", 0),
    ] {
        let error = plimsoll_workload::prompt_file::read_prompts(broken.as_bytes(), "p").unwrap_err();
        assert_eq!(error.line, line, "{broken}: {error}");
    }
}

/// A cross-encoder reads the query with each document, so the requested tokens include it each time. Even with too few
/// tokens for a word each, no document is empty.
#[test]
fn documents_and_the_query_with_each_are_the_asked_length() {
    for (tokens, documents) in [(90, 7), (6000, 25), (20, 10), (1000, 1), (3, 10), (1_usize, 1)] {
        let mut s = scenario(PromptSpec::default(), &tokens.to_string());
        s.target.protocol = Protocol::Rerank;
        s.target.documents = Some(Documents::parse(&documents.to_string()).unwrap());
        let payload = Prompts::new(&s, 4).unwrap().payload(&arrivals(&s, 50, 0)[0]);
        let Payload::Documents { query, documents: texts } = payload else {
            panic!("a rerank carries documents")
        };
        let count = |text: &str| text.split_whitespace().count();
        assert_eq!(texts.len(), documents as usize);
        assert!(count(&query) >= 1 && texts.iter().all(|text| count(text) >= 1));
        let read: usize = texts.iter().map(|text| count(text) + count(&query)).sum();
        assert_eq!(read, tokens.max(2 * documents as usize), "{tokens} tokens, {documents} documents");
        let lengths: Vec<usize> = texts.iter().map(|text| count(text)).collect();
        assert!(lengths.iter().max().unwrap() - lengths.iter().min().unwrap() <= 1, "{lengths:?}");
    }
}
