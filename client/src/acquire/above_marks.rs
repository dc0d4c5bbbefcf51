//! Recovery of a live lease whose token the guard refuses as stale, because the lock server lost
//! its memory.

use fence_protocol::{LockName, Token};

use super::LockRequest;
use crate::{Error, ErrorKind, Lease};

impl Lease {
    /// Releases this lease and acquires the lock with a token above the guard's mark, if the lock
    /// server issues tokens below the marks.
    ///
    /// A guard that refuses the token of a lease as stale has seen a higher one. Nearly always
    /// another client has acquired the lock and this holder has not noticed: it must stop. But a
    /// lock server that lost its memory issues tokens below the marks, and then *every* holder is
    /// refused until the counter is raised. `refusal` is the guard's error.
    ///
    /// The lock server decides which case it is, not the local clock: releasing the lease succeeds
    /// only if the lease was live until then, so that no other client can have been granted the
    /// lock since. Only then is the lock acquired again. A stale holder gets
    /// [`ErrorKind::LeaseLost`].
    ///
    /// The result is *another* grant, behind the waiters in the queue. Data that was read under the
    /// old lease may have changed since: restart the work from its first read, and never just retry
    /// the refused write. That is why this consumes the old lease, and why nothing in this crate
    /// calls it by itself.
    ///
    /// # Errors
    /// - [`ErrorKind::LeaseLost`]: this lease has ended, here or at the server. Stop the work.
    /// - [`ErrorKind::Stale`]: this lease was acquired by this method, and the guard's mark is
    ///   above it again. Two lock servers issue tokens for one guard, or tokens are forged: an
    ///   operator must investigate.
    /// - [`ErrorKind::Invalid`]: `refusal` is no guard's refusal of this lease's token, or its mark
    ///   is above what the lock server lets a client request; or the lease is shared or a permit.
    /// - Otherwise as [`release`](Self::release) and [`LockRequest::acquire`]; after
    ///   [`ErrorKind::OutcomeUnknown`] and [`ErrorKind::Unavailable`] this lease is no longer
    ///   renewed and expires by itself.
    ///
    /// # Cancel safety
    /// If the future is dropped, its leases are released in the background.
    ///
    /// ```no_run
    /// # async fn example(client: fence_client::Client) -> Result<(), fence_client::Error> {
    /// use fence_client::{ErrorKind, Lease};
    ///
    /// async fn add_one(lease: &Lease) -> Result<(), fence_client::Error> {
    ///     let count = lease.objects().get(lease, "count").await?;
    ///     let next = count.map_or(1, |count| count.body.len() + 1);
    ///     lease.objects().put(lease, "count", vec![b'x'; next]).await?;
    ///     Ok(())
    /// }
    ///
    /// let mut lease = client.lock("count").acquire().await?;
    /// if let Err(refusal) = add_one(&lease).await {
    ///     if !matches!(refusal.kind(), ErrorKind::Stale { .. }) {
    ///         return Err(refusal);
    ///     }
    ///     lease = lease.reacquire_above(&refusal).await?;
    ///     add_one(&lease).await?; // all of it, from its first read
    /// }
    /// lease.release().await
    /// # }
    /// ```
    pub async fn reacquire_above(self, refusal: &Error) -> Result<Self, Error> {
        let mark = self.mark_above(refusal)?;
        self.check()?;
        self.check_alone(mark)?;
        if self.is_above_marks {
            let message = format!(
                "the lock {} was acquired above a guard's mark once, and its token {} is below the \
                 mark {mark} again: two lock servers issue tokens for one guard, or tokens are \
                 forged; an operator must investigate",
                self.lock(),
                self.token()
            );
            return Err(Error::new(ErrorKind::Stale { mark: Some(mark) }, message));
        }
        let client = self.client.clone();
        let mut spec = self.spec.clone();
        let lock = self.lock().clone();
        let token = self.token();
        // The proof: a successful release means that the lease was live at the server until now.
        let released = self.release_live().await;
        released.map_err(|error| error.context("the lease that the guard refused"))?;
        tracing::warn!(
            %lock, %token, %mark,
            "the lock server lost its memory and issues tokens below the mark of a guard; acquiring \
             the lock above the mark"
        );
        spec.min_token = Some(mark);
        let mut lease = LockRequest { client, spec: Ok(spec) }.acquire().await?;
        lease.is_above_marks = true;
        Ok(lease)
    }

    /// Refuses shared leases and permits: there a higher mark is that of another live lease, and
    /// the lock server is intact.
    fn check_alone(&self, mark: Token) -> Result<(), Error> {
        let mode = self.grant().mode;
        if mode.is_exclusive() {
            return Ok(());
        }
        let message = format!(
            "token {} of lock {} ({}) is below the mark {mark} of another holder: a guard admits one \
             of several leases, so acquire an exclusive lease for guarded data",
            self.token(),
            self.lock(),
            mode.as_str()
        );
        Err(Error::new(ErrorKind::Invalid, message))
    }

    /// Extracts the mark from a guard's refusal of this lease's token.
    fn mark_above(&self, refusal: &Error) -> Result<Token, Error> {
        let member = |name: &str| refusal.problem().and_then(|problem| problem.extension(name));
        let presented: Option<Token> = member("presented");
        let lock: Option<LockName> =
            refusal.problem().and_then(|problem| problem.extension("lock"));
        match refusal.min_token() {
            Some(mark)
                if mark >= self.token()
                    && presented == Some(self.token())
                    && lock.as_ref() == Some(self.lock()) =>
            {
                Ok(mark)
            }
            _ => {
                let message = format!(
                    "this is no guard's refusal of token {} of lock {}: {refusal}",
                    self.token(),
                    self.lock()
                );
                Err(Error::new(ErrorKind::Invalid, message))
            }
        }
    }
}
