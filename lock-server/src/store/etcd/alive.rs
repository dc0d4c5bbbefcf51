//! Keepalives that count: those that the leader of a term has heard, or of a later one.
//!
//! A leader that stood still goes on as if it led, until it hears of the next one. It answers
//! keepalives by itself, and no lease gets its time by them where it counts. A transaction, and a
//! linearizable reading, is agreed on with a majority: its answer says which term that is in, and a
//! keepalive that was answered in an earlier one is made again.

use std::time::Duration;

use super::gateway::{Alive, Gateway, GatewayError};

/// How often a keepalive is made again.
const TRIES_AGAIN: usize = 10;
/// Before it is: whoever leads makes itself heard ten times a second.
const PAUSE: Duration = Duration::from_millis(100);

impl Gateway {
    /// Gives an etcd lease its time again where the leader of this term knows of it; whether it is
    /// there.
    ///
    /// # Errors
    /// [`GatewayError`], never [`GatewayError::Unknown`].
    pub(super) async fn keep_alive(&self, lease: u64, term: u64) -> Result<bool, GatewayError> {
        self.alive_in(term, lease, self.lease_keepalive(lease).await).await
    }

    /// The same for a keepalive that was made already, when the term was not known yet.
    pub(super) async fn alive_in(
        &self,
        term: u64,
        lease: u64,
        first: Result<Alive, GatewayError>,
    ) -> Result<bool, GatewayError> {
        let mut alive = first?;
        for _ in 0..TRIES_AGAIN {
            if alive.term >= term {
                return Ok(alive.is_there);
            }
            tokio::time::sleep(PAUSE).await;
            alive = self.lease_keepalive(lease).await?;
        }
        Err(GatewayError::Down(format!(
            "a member of etcd that led in term {} does not know that term {term} has begun",
            alive.term
        )))
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpListener;

    use service_kit::login::StoreLogin;

    use super::*;

    /// A gateway whose member answers one keepalive after the other in these terms; the last one for
    /// ever. No etcd can be made to answer so at will.
    fn gateway(terms: &'static [u64]) -> Gateway {
        service_kit::tls::install_crypto();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("etcd://{}", listener.local_addr().unwrap());
        let serve = move || {
            let mut terms = terms.iter().copied();
            let mut term = 0;
            for mut stream in listener.incoming().map_while(Result::ok) {
                term = terms.next().unwrap_or(term);
                let mut request = [0; 4096];
                let _ = stream.read(&mut request);
                let body =
                    format!(r#"{{"result":{{"header":{{"raft_term":"{term}"}},"TTL":"3"}}}}"#);
                let head = "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: ";
                let _ = write!(stream, "{head}{}\r\n\r\n{body}", body.len());
            }
        };
        std::thread::Builder::new().name("member".to_owned()).spawn(serve).unwrap();
        let patience = Duration::from_secs(5);
        Gateway::new(&url.parse().unwrap(), &StoreLogin::default(), patience, patience).unwrap()
    }

    #[tokio::test]
    async fn a_keepalive_of_an_earlier_term_is_made_again() {
        let gateway = gateway(&[4, 4, 5]);
        assert_eq!(gateway.keep_alive(9, 5).await, Ok(true));
        let later = gateway.lease_keepalive(9).await.unwrap();
        assert_eq!(later, Alive { is_there: true, term: 5 });
    }

    #[tokio::test]
    async fn a_member_that_stays_behind_keeps_nothing_alive() {
        let gateway = gateway(&[4]);
        let kept = gateway.keep_alive(9, 5).await;
        assert!(matches!(kept, Err(GatewayError::Down(_))), "{kept:?}");
    }
}
