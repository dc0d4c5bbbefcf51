//! The subscription to this server's channel.

use std::time::Duration;

use futures_util::StreamExt;
use tokio::sync::mpsc;

use super::RedisRecords;
use crate::engines::contract::{Key, ServerId, Wakeup};

const RESUBSCRIBE_PAUSE: Duration = Duration::from_millis(100);
const PING_INTERVAL: Duration = Duration::from_secs(1);
/// After so many pings that did not arrive, the subscription is made anew.
const UNHEARD_MAX: u32 = 3;
const PING: &str = "ping";

impl RedisRecords {
    /// Listens until shutdown; subscribes anew when the connection is lost or silent.
    pub(super) async fn listen(self, server: ServerId, wakeups: mpsc::Sender<Wakeup>) {
        let channel = self.inner.keys.channel(server);
        while !wakeups.is_closed() {
            if let Err(reason) = self.listen_once(&channel, &wakeups).await {
                tracing::debug!(reason, "cannot subscribe");
            }
            tokio::time::sleep(RESUBSCRIBE_PAUSE).await;
        }
    }

    async fn listen_once(
        &self,
        channel: &str,
        wakeups: &mpsc::Sender<Wakeup>,
    ) -> Result<(), String> {
        let options = self.inner.link_options;
        let mut subscription =
            self.inner.links.first().target().subscribe(options.connect_timeout).await?;
        match tokio::time::timeout(options.reply_timeout, subscription.subscribe(channel)).await {
            Ok(done) => done.map_err(|error| error.to_string())?,
            Err(_) => return Err("no reply in time".to_owned()),
        }
        // Messages before this moment were lost.
        let _ = wakeups.try_send(Wakeup::All);
        let mut messages = subscription.into_on_message();
        let mut ticker = tokio::time::interval(PING_INTERVAL);
        let mut unheard = 0;
        while unheard <= UNHEARD_MAX && !wakeups.is_closed() {
            tokio::select! {
                message = messages.next() => {
                    let Some(message) = message else { break };
                    let text: String = message.get_payload().unwrap_or_default();
                    unheard = 0;
                    if let Some(key) = Key::from_text(&text) {
                        let _ = wakeups.try_send(Wakeup::Record(key));
                    }
                }
                _ = ticker.tick() => {
                    let mut publish = ::redis::cmd("PUBLISH");
                    publish.arg(channel).arg(PING);
                    // A Redis that does not answer is noticed by the pings that do not arrive.
                    let _ = self.inner.links.first().call(&publish).await;
                    unheard += 1;
                }
            }
        }
        tracing::warn!("the subscription to Redis was lost; subscribing again");
        Ok(())
    }
}
