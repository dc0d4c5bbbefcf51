//! A real Chromium, driven over the WebDriver protocol.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use base64::Engine as _;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::key_file::text;
use crate::process::{Process, command};
use crate::wait::{patience, soon, until, until_within};

/// Nothing of the machine's user, and nothing from elsewhere.
const FLAGS: [&str; 8] = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
];

/// Longer than any test waits.
const FOREVER: Duration = Duration::from_secs(3_600);

/// The Enter key, as WebDriver writes it.
pub const ENTER: &str = "\u{e007}";

/// Member that has the id of an element (WebDriver, section 12.2).
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";

/// A browser with one window and a profile of its own. Closed when dropped.
#[derive(Debug)]
pub struct Browser {
    session: String,
    port: u16,
    client: reqwest::Client,
    _driver: Process,
    _profile: TempDir,
}

impl Browser {
    /// Starts one.
    ///
    /// # Panics
    /// If `chromedriver` or `chromium` is missing.
    pub async fn start() -> Self {
        let mut driver = command("chromedriver");
        driver.args(["--port=0", "--log-level=WARNING"]);
        let mut driver = Process::spawn("chromedriver", driver);
        let port = driver.line_after("ChromeDriver was started successfully on port ").await;
        let port: u16 = port.trim_end_matches('.').parse().expect("a port");
        let profile = crate::folder::new();
        let folder = format!("--user-data-dir={}", text(profile.path()));
        let flags: Vec<&str> = FLAGS.into_iter().chain([folder.as_str()]).collect();
        service_kit::tls::install_crypto();
        let client = reqwest::Client::builder().no_proxy().build().expect("a client");
        let mut browser =
            Self { session: String::new(), port, client, _driver: driver, _profile: profile };
        let wanted = json!({"capabilities": {"alwaysMatch": {
            "goog:chromeOptions": {"args": flags},
            "goog:loggingPrefs": {"browser": "ALL"},
        }}});
        let session = browser.request(reqwest::Method::POST, "/session", &wanted).await;
        let id = session["sessionId"].as_str().expect("a session");
        browser.session = format!("/session/{id}");
        browser
    }

    async fn request(&self, method: reqwest::Method, path: &str, body: &Value) -> Value {
        let (status, mut body) = self.attempt(method, path, body).await;
        assert_eq!(status, 200, "{path}: {body}");
        body["value"].take()
    }

    async fn attempt(&self, method: reqwest::Method, path: &str, body: &Value) -> (u16, Value) {
        let url = format!("http://127.0.0.1:{}{path}", self.port);
        // The driver refuses any body of a GET.
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let request = self.client.request(method, url).body(body);
        let reply = soon("the browser", request.send()).await.expect("a reply of the driver");
        let status = reply.status().as_u16();
        let body = reply.bytes().await.expect("the driver's reply");
        (status, serde_json::from_slice(&body).expect("JSON of the driver"))
    }

    async fn post(&self, path: &str, body: &Value) -> Value {
        self.request(reqwest::Method::POST, &format!("{}{path}", self.session), body).await
    }

    /// Opens a page and waits until it has loaded.
    pub async fn open(&self, url: &str) {
        self.post("/url", &json!({ "url": url })).await;
    }

    /// Sets the size of the window in pixels, and the colour scheme of its user.
    pub async fn show_as(&self, width: u32, height: u32, scheme: &str) {
        let cdp = async |command: &str, params: Value| {
            let body = json!({"cmd": command, "params": params});
            self.post("/goog/cdp/execute", &body).await;
        };
        let size = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600});
        cdp("Emulation.setDeviceMetricsOverride", size).await;
        let scheme = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
        cdp("Emulation.setEmulatedMedia", scheme).await;
    }

    /// Value of a script that ends in `return`.
    pub async fn run(&self, script: &str) -> Value {
        self.post("/execute/sync", &json!({"script": script, "args": []})).await
    }

    /// Waits until an expression of JavaScript is true.
    ///
    /// # Panics
    /// If it never is; with the text of the page.
    pub async fn until(&self, expression: &str) {
        let script = format!("try {{ return Boolean({expression}) }} catch {{ return false }}");
        // The page is shown instead of its message.
        let is_true = until_within(FOREVER, expression, || async {
            (self.run(&script).await == Value::Bool(true)).then_some(())
        });
        let outcome = tokio::time::timeout(patience(), is_true).await;
        if outcome.is_err() {
            let page = self.run("return location.href + '\\n' + document.body.innerText").await;
            panic!("{expression} is false on {}", page.as_str().unwrap_or_default());
        }
    }

    /// Waits until the text of the first element that a selector finds contains `part`.
    pub async fn until_text(&self, selector: &str, part: &str) {
        let expression = format!(
            "document.querySelector({}).innerText.includes({})",
            Value::from(selector),
            Value::from(part)
        );
        self.until(&expression).await;
    }

    async fn element(&self, selector: &str) -> String {
        let body = json!({"using": "css selector", "value": selector});
        let found = self.post("/element", &body).await;
        found[ELEMENT].as_str().expect("an element").to_owned()
    }

    /// Clicks an element as a mouse does; the page may replace it between the search and the click.
    pub async fn click(&self, selector: &str) {
        until("a click", || async {
            let element = self.element(selector).await;
            let path = format!("{}/element/{element}/click", self.session);
            let (status, body) = self.attempt(reqwest::Method::POST, &path, &json!({})).await;
            let is_stale = body["value"]["error"] == "stale element reference";
            assert!(status == 200 || is_stale, "{selector}: {body}");
            (!is_stale).then_some(())
        })
        .await;
    }

    /// Types into an element.
    pub async fn type_into(&self, selector: &str, text: &str) {
        let element = self.element(selector).await;
        self.post(&format!("/element/{element}/value"), &json!({ "text": text })).await;
    }

    /// Presses keys in the element that has the focus, or in the page.
    pub async fn press(&self, keys: &str) {
        let press = |key: char| {
            let key = key.to_string();
            [json!({"type": "keyDown", "value": key}), json!({"type": "keyUp", "value": key})]
        };
        let actions: Vec<Value> = keys.chars().flat_map(press).collect();
        let keyboard = json!({"actions": [{"type": "key", "id": "keyboard", "actions": actions}]});
        self.post("/actions", &keyboard).await;
    }

    /// The window as a PNG.
    ///
    /// # Panics
    /// If the driver's reply is none.
    pub async fn screenshot(&self) -> Vec<u8> {
        let path = format!("{}/screenshot", self.session);
        let picture = self.request(reqwest::Method::GET, &path, &Value::Null).await;
        let picture = picture.as_str().expect("a picture");
        base64::engine::general_purpose::STANDARD.decode(picture).expect("base64")
    }

    /// Errors of the page's console since the last call, such as a breach of its policy.
    pub async fn errors(&self) -> Vec<String> {
        let lines = self.post("/se/log", &json!({"type": "browser"})).await;
        let lines = lines.as_array().expect("lines").iter();
        let severe = lines.filter(|line| line["level"] == "SEVERE");
        severe.map(|line| line["message"].as_str().unwrap_or_default().to_owned()).collect()
    }
}

impl Drop for Browser {
    /// The driver ends its browser, which it started in a process group of its own.
    fn drop(&mut self) {
        let Ok(mut stream) = TcpStream::connect(("127.0.0.1", self.port)) else { return };
        let _ = stream.set_read_timeout(Some(Duration::from_secs(5)));
        let head = format!("DELETE {} HTTP/1.1\r\nhost: localhost\r\n\r\n", self.session);
        let _ = stream.write_all(head.as_bytes());
        let _ = stream.read(&mut [0; 256]);
    }
}
