//! What clients can give, from the documents that describe it: for each field of each operation one input in which that field
//! is a hole, and all else is as an app would have it.

pub(crate) mod fillings;

use serde_json::{Map, Value, json};

/// Stands in an input for a text that is put in later.
const TEXT_HOLE: &str = "\u{e000}";
/// The same for a number. No sample has it.
const NUMBER_HOLE: u64 = 7_654_321_012_345;
/// How deep a field may be in an input: rules and journeys nest without end.
const DEPTH_MAX: usize = 10;

/// An input with a hole.
#[derive(Clone)]
pub(crate) struct Input {
    /// The field, by its path.
    pub place: String,
    json: String,
}

impl Input {
    fn of(place: &str, value: &Value) -> Input {
        Input { place: place.to_owned(), json: value.to_string() }
    }

    pub(crate) fn is_for_text(&self) -> bool {
        self.json.contains(TEXT_HOLE)
    }

    pub(crate) fn is_for_number(&self) -> bool {
        self.json.contains(&NUMBER_HOLE.to_string())
    }

    /// The input with a text that stands for any JSON in the place of the hole; see [`with_json`]. `None`: the hole is the name of a
    /// field, or there is none.
    pub(crate) fn for_json(&self) -> Option<String> {
        let hole = Value::from(TEXT_HOLE).to_string();
        let json = self.json.replace(&NUMBER_HOLE.to_string(), &hole);
        (json.contains(&hole) && !json.contains(&format!("{hole}:"))).then_some(json)
    }

    /// How deep the field is.
    pub(crate) fn depth(&self) -> usize {
        self.place.matches('.').count()
    }

    /// The input as JSON with the hole filled.
    pub(crate) fn filled(&self, text: &str, number: u64) -> String {
        let quoted = Value::from(text).to_string();
        let json = self.json.replace(TEXT_HOLE, &quoted[1..quoted.len() - 1]);
        json.replace(&NUMBER_HOLE.to_string(), &number.to_string())
    }
}

/// Puts JSON, which need not be valid, into what [`Input::for_json`] answered, or a part of it. Outside JSON it is put in as a text.
pub(crate) fn with_json(part: &str, json: &str) -> String {
    part.replace(&Value::from(TEXT_HOLE).to_string(), json).replace(TEXT_HOLE, json)
}

/// A request over HTTP with a hole in its path, its query, its headers or its body.
pub(crate) struct HttpInput {
    /// Method and path as the document has them.
    pub operation: String,
    pub method: String,
    pub content_type: String,
    /// `path`, `query`, `headers` and `body`.
    pub input: Input,
}

/// The inputs of all operations of an OpenAPI document.
pub(crate) fn http_inputs(document: &Value) -> Vec<HttpInput> {
    let mut inputs = Vec::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        let methods = methods.as_object().unwrap();
        // What an operation needs is written before it, and removed after all.
        for method in
            ["put", "post", "patch", "get", "delete"].into_iter().filter(|method| methods.contains_key(*method))
        {
            let (schema, content_type) = request_schema(&methods[method]);
            let operation = format!("{} {path}", method.to_uppercase());
            let schemas = Schemas { document, operation: &operation };
            // As an app would have it, and then with holes.
            let sample = (String::new(), schemas.sample("", &schema));
            for input in [sample].into_iter().chain(schemas.with_holes("", &schema, 0)) {
                inputs.push(HttpInput {
                    operation: operation.clone(),
                    method: method.to_uppercase(),
                    content_type: content_type.clone(),
                    input: Input::of(&input.0, &input.1),
                });
            }
        }
    }
    inputs.sort_by_key(|input| input.method == "DELETE");
    inputs
}

/// A request of the operation as one object, so that a parameter is a field like those of a body.
fn request_schema(operation: &Value) -> (Value, String) {
    let mut parts: Map<String, Value> = Map::new();
    for parameter in operation["parameters"].as_array().into_iter().flatten() {
        let part = parts.entry(parameter["in"].as_str().unwrap()).or_insert_with(|| object(json!({}), &[]));
        let name = parameter["name"].as_str().unwrap();
        part["properties"][name] = parameter["schema"].clone();
        if parameter["required"] == true {
            part["required"].as_array_mut().unwrap().push(name.into());
        }
    }
    let contents = operation["requestBody"]["content"].as_object();
    let content = contents.and_then(|contents| contents.iter().next());
    if let Some((_, content)) = content {
        parts.insert("body".into(), content["schema"].clone());
    }
    let names: Vec<String> = parts.keys().cloned().collect();
    let required: Vec<&str> = names.iter().map(String::as_str).collect();
    let content_type = content.map_or("application/json", |(content_type, _)| content_type);
    (object(Value::Object(parts), &required), content_type.to_owned())
}

fn object(properties: Value, required: &[&str]) -> Value {
    json!({"type": "object", "properties": properties, "required": required})
}

/// The frames that clients send by an AsyncAPI document: the kind of each, whether it is answered, and its inputs.
pub(crate) fn frame_inputs(document: &Value) -> Vec<(String, bool, Vec<Input>)> {
    let messages = document["components"]["messages"].as_object().unwrap();
    let of_clients = messages.iter().filter(|(name, _)| name.starts_with("client_"));
    let frame = |(_, message): (&String, &Value)| {
        let kind = message["name"].as_str().unwrap();
        let schemas = Schemas { document, operation: kind };
        let payload = schemas.resolved(&message["payload"]);
        let holes = schemas.with_holes("", &payload, 0).into_iter().filter(|(place, _)| place != ".ref");
        let inputs = holes.map(|(place, mut value)| {
            if place != ".t" {
                value["t"] = kind.into();
            }
            Input::of(&place, &value)
        });
        (kind.to_owned(), payload["properties"].get("ref").is_some(), inputs.collect())
    };
    of_clients.map(frame).collect()
}

/// The schemas of an operation, and the document with those that they name.
struct Schemas<'a> {
    document: &'a Value,
    operation: &'a str,
}

impl Schemas<'_> {
    /// The schema itself: what it refers to, and all of its parts as one.
    fn resolved(&self, schema: &Value) -> Value {
        if let Some(target) = schema["$ref"].as_str() {
            return self
                .resolved(self.document.pointer(&target[1..]).unwrap_or_else(|| panic!("{target} leads nowhere")));
        }
        let Some(parts) = schema["allOf"].as_array() else { return schema.clone() };
        let mut whole = object(json!({}), &[]);
        for part in parts.iter().map(|part| self.resolved(part)) {
            for (name, field) in part["properties"].as_object().into_iter().flatten() {
                whole["properties"][name] = field.clone();
            }
            whole["required"]
                .as_array_mut()
                .unwrap()
                .extend(part["required"].as_array().into_iter().flatten().cloned());
        }
        whole
    }

    /// A value that the operation takes, of the fewest fields unless the document has an example.
    fn sample(&self, name: &str, schema: &Value) -> Value {
        let schema = self.resolved(schema);
        if let Some(example) = schema.get("example").cloned().or_else(|| object_sample(self.operation, name)) {
            return example;
        }
        if let Some(first) = schema["enum"].get(0) {
            return first.clone();
        }
        if let Some(choices) = schema["oneOf"].as_array() {
            return choices.iter().map(|choice| self.sample(name, choice)).find(|value| !value.is_null()).unwrap();
        }
        match kind(&schema) {
            "null" => Value::Null,
            "object" => {
                let required = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
                required.map(|field| (field.to_owned(), self.sample(field, &schema["properties"][field]))).collect()
            }
            "array" => json!([self.sample(name, &schema["items"])]),
            "string" => text_sample(self.operation, name).into(),
            "integer" | "number" => number_sample(self.operation, name).into(),
            "boolean" => false.into(),
            _ => json!({"text": "hello"}),
        }
    }

    /// Values of the schema with one hole each, and where it is.
    fn with_holes(&self, place: &str, schema: &Value, depth: usize) -> Vec<(String, Value)> {
        let schema = self.resolved(schema);
        let hole = |value: Value| vec![(place.to_owned(), value)];
        if depth > DEPTH_MAX {
            return Vec::new();
        }
        if let Some(choices) = schema["oneOf"].as_array() {
            return choices.iter().flat_map(|choice| self.with_holes(place, choice, depth)).collect();
        }
        match kind(&schema) {
            "object" => self.objects_with_holes(place, &schema, depth),
            "array" => {
                let items = self.with_holes(place, &schema["items"], depth + 1);
                items.into_iter().map(|(place, item)| (place, json!([item]))).collect()
            }
            "string" => hole(TEXT_HOLE.into()),
            "integer" | "number" => hole(NUMBER_HOLE.into()),
            "boolean" | "null" => Vec::new(),
            _ => vec![(place.to_owned(), TEXT_HOLE.into()), (place.to_owned(), json!({"text": TEXT_HOLE}))],
        }
    }

    /// Each field with a hole, beside the other fields of the sample. Fields may exclude each other, as `to` and `conversation`
    /// do, so each of the others is left out once.
    fn objects_with_holes(&self, place: &str, schema: &Value, depth: usize) -> Vec<(String, Value)> {
        let sample = self.sample("", schema);
        let required: Vec<&str> =
            schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let optional = sample.as_object().unwrap().keys().filter(|field| !required.contains(&field.as_str()));
        let without = |field: &String| {
            let mut fewer = sample.clone();
            fewer.as_object_mut().unwrap().remove(field);
            fewer
        };
        let bases: Vec<Value> = [sample.clone()].into_iter().chain(optional.map(without)).collect();
        let mut found = Vec::new();
        for (field, part) in schema["properties"].as_object().into_iter().flatten() {
            for (place, value) in self.with_holes(&format!("{place}.{field}"), part, depth + 1) {
                let mut of_field: Vec<(String, Value)> = Vec::new();
                for base in &bases {
                    let mut whole = base.clone();
                    whole[field] = value.clone();
                    if of_field.iter().all(|(_, other)| *other != whole) {
                        of_field.push((place.clone(), whole));
                    }
                }
                found.extend(of_field);
            }
        }
        if depth > 0 && schema["properties"].as_object().is_none_or(Map::is_empty) {
            found.push((format!("{place}.*"), json!({"text": TEXT_HOLE})));
            found.push((format!("{place}.*"), json!({TEXT_HOLE: 1})));
        }
        found
    }
}

/// The first type of a schema that is not `null`.
fn kind(schema: &Value) -> &str {
    match &schema["type"] {
        Value::String(kind) => kind,
        Value::Array(kinds) => kinds.iter().filter_map(Value::as_str).find(|kind| *kind != "null").unwrap_or("null"),
        _ if schema["properties"].is_object() => "object",
        _ => "any",
    }
}

/// Ids and words that exist, so that a request comes as far as it can.
fn text_sample(operation: &str, field: &str) -> &'static str {
    match field {
        "conversation" if operation.contains("/desk") => "shop",
        "conversation" if operation.contains("assign") => "carol~shop",
        "conversation" => "demo",
        "user" | "users" | "from" | "to" | "owner" | "members" | "add" | "assigned_to" | "if_assigned_to" => "bob",
        "account" => "shop",
        "device_id" => "phone",
        "token" => "token",
        "kind" => "group",
        "start" => "08:00",
        "end" => "20:00",
        "time_zone" => "Europe/Berlin",
        "language" => "de",
        "attention" => "foreground",
        "popup" | "segment" | "journey" | "placement" | "placements" => "home",
        _ => "x",
    }
}

/// Objects of which a part must be there, though each part is optional.
fn object_sample(operation: &str, field: &str) -> Option<Value> {
    Some(match field {
        "to" if operation == "POST /v1/bulk-sends" => json!({"users": ["carol"]}),
        "entry" => json!({"event": "joined"}),
        "steps" => json!({"id": "first", "type": "wait", "for": "1d"}),
        "events" => json!({"id": "1", "type": "custom", "name": "joined"}),
        _ => return None,
    })
}

/// The third message is the one that is recalled, and the second is one that grows.
fn number_sample(operation: &str, field: &str) -> u64 {
    match field {
        "seq" if operation == "recall" || operation.starts_with("DELETE") && operation.ends_with("/{seq}") => 3,
        "seq" if operation.contains("stream") => 2,
        _ => 1,
    }
}
