//! Requests, parsed by an independent JSON reader.

use plimsoll_model::{Message, Payload, Protocol, Role};
use plimsoll_wire::{RequestOptions, Template, TemplateError, encode};
use proptest::prelude::*;
use serde_json::{Value, json};

fn body(payload: &Payload, options: &RequestOptions) -> Value {
    serde_json::from_slice(&encode(payload, options).body).expect("a JSON body")
}

fn talk() -> Payload {
    Payload::Messages(vec![
        Message::text(Role::System, "be \"brief\""),
        Message::text(Role::User, "two\nlines \u{1}"),
    ])
}

fn options(protocol: Protocol) -> RequestOptions {
    RequestOptions {
        protocol,
        model: Some("m".into()),
        stream: true,
        max_tokens: Some(8),
        ignore_eos: true,
        temperature: Some(0.5),
        ..RequestOptions::default()
    }
}

#[test]
fn bodies_per_protocol() {
    let stream_options = json!({"include_usage": true, "continuous_usage_stats": true});
    let messages = json!([
        {"role": "system", "content": "be \"brief\""},
        {"role": "user", "content": "two\nlines \u{1}"},
    ]);
    assert_eq!(
        body(&talk(), &options(Protocol::Chat)),
        json!({"model": "m", "messages": messages, "max_tokens": 8, "temperature": 0.5, "ignore_eos": true,
            "stream": true, "stream_options": stream_options})
    );
    assert_eq!(
        body(&Payload::Text("a b".into()), &options(Protocol::Completions)),
        json!({"model": "m", "prompt": "a b", "max_tokens": 8, "temperature": 0.5, "ignore_eos": true,
            "stream": true, "stream_options": stream_options})
    );
    assert_eq!(
        body(&talk(), &options(Protocol::Responses)),
        json!({"model": "m", "input": messages, "max_output_tokens": 8, "temperature": 0.5, "ignore_eos": true,
            "stream": true})
    );
    assert_eq!(
        body(&Payload::Text("a b".into()), &options(Protocol::Embeddings)),
        json!({"model": "m", "input": "a b"})
    );
    assert_eq!(
        body(&Payload::Text("a".into()), &RequestOptions::default()),
        json!({"messages": [{"role": "user", "content": "a"}]})
    );
    assert_eq!(
        body(&Payload::Text("a".into()), &options(Protocol::Http)),
        json!({"prompt": "a", "max_tokens": 8})
    );
    assert_eq!(encode(&talk(), &options(Protocol::Chat)).path, "/chat/completions");
    assert_eq!(encode(&talk(), &options(Protocol::Http)).path, "");
}

#[test]
fn the_users_own_fields_win() {
    let mut options = options(Protocol::Chat);
    let extra =
        json!({"stream_options": {"include_usage": true}, "ignore_eos": null, "model": "other", "top_k": 5});
    options.extra = extra.as_object().cloned().unwrap();
    let body = body(&talk(), &options);
    assert_eq!(body["stream_options"], json!({"include_usage": true}));
    assert_eq!(body["model"], json!("other"));
    assert_eq!(body["top_k"], json!(5));
    assert!(body.get("ignore_eos").is_none());
}

#[test]
fn templates_are_filled_and_escaped() {
    let text = r#"{"in": "<{{prompt}}>", "all": {{messages}}, "p": {{ prompt }}, "n": {{max_tokens}}, "t": {{temperature}},
        "s": {{stream}}, "quoted": "{{max_tokens}}/{{model}}", "as_text": "{{messages}}", "escaped": "\"{{id}}\""}"#;
    let mut options = options(Protocol::Http);
    options.template = Some(Template::parse(text).unwrap());
    options.id = "run-0-1-0".into();
    let payload = Payload::Text("say \"hi\"\n\\".into());
    let found = body(&payload, &options);
    let prompt = "say \"hi\"\n\\";
    let messages = json!([{"role": "user", "content": prompt}]);
    assert_eq!(found["in"], json!(format!("<{prompt}>")));
    assert_eq!(found["p"], json!(prompt));
    assert_eq!(found["all"], messages);
    assert_eq!((&found["n"], &found["t"], &found["s"]), (&json!(8), &json!(0.5), &json!(true)));
    assert_eq!(found["quoted"], json!("8/m"));
    let as_text: Value = serde_json::from_str(found["as_text"].as_str().unwrap()).unwrap();
    assert_eq!(as_text, messages);
    assert_eq!(found["escaped"], json!("\"run-0-1-0\""));
    options.max_tokens = None;
    let found = body(&payload, &options);
    assert_eq!((&found["n"], &found["quoted"]), (&Value::Null, &json!("/m")));
    // A body that is not JSON is filled without escapes.
    options.template = Some(Template::parse("q={{prompt}}&n={{max_tokens}}").unwrap());
    let encoded = encode(&Payload::Text("a\"b".into()), &options);
    assert_eq!(&encoded.body[..], b"q=a\"b&n=");
    assert_eq!(encoded.content_type, "text/plain; charset=utf-8");
}

#[test]
fn broken_templates_are_refused() {
    let error = Template::parse("{\"a\": \"{{promt}}\"}").unwrap_err();
    assert_eq!(error, TemplateError::Unknown { name: "promt".into() });
    assert!(
        error.to_string().starts_with("unknown placeholder {{promt}}; known are: prompt, messages"),
        "{error}"
    );
    assert_eq!(Template::parse("{\"a\": {{prompt").unwrap_err(), TemplateError::Unclosed { at: 6 });
    assert!(matches!(Template::parse("{\"a\": {{prompt}}").unwrap_err(), TemplateError::NotJson { .. }));
    assert!(matches!(
        Template::parse("{\"a\": 1{{max_tokens}}}").unwrap_err(),
        TemplateError::NotJson { .. }
    ));
}

proptest! {
    #[test]
    fn any_prompt_survives_the_way(text in any::<String>()) {
        let payload = Payload::Text(text.clone());
        let found = body(&payload, &options(Protocol::Chat));
        prop_assert_eq!(&found["messages"][0]["content"], &json!(text.clone()));
        let mut options = options(Protocol::Http);
        options.template = Some(Template::parse("{\"a\": \"x{{prompt}}\", \"b\": {{prompt}}}").unwrap());
        let found = body(&payload, &options);
        prop_assert_eq!(&found["a"], &json!(format!("x{text}")));
        prop_assert_eq!(&found["b"], &json!(text));
    }
}
