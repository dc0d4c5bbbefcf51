//! A live lease whose token the guard calls stale: the lock server may have lost its memory.

use fence_protocol::{LockName, Token};

use super::LockRequest;
use crate::{Error, ErrorKind, Lease};

impl Lease {
    /// Gives this lease back and acquires the lock anew with a token above the guard's mark, where
    /// the lock server turns out to be below the marks.
    ///
    /// A guard that calls the token of a lease stale has seen a higher one. Nearly always that means
    /// that the lock has passed on and this holder has not noticed: it must stop. But a lock server
    /// that lost its memory issues tokens below the marks, and then *every* holder is refused until
    /// the counter is lifted. `refusal` is the error in which the guard said so.
    ///
    /// Which of the two it is decides the lock server, not the clock here: releasing the lease
    /// succeeds only where it was the holder's until this moment, so that nobody can have been
    /// granted the lock since. Only then is it acquired again. A holder that is really stale gets
    /// [`ErrorKind::LeaseLost`] and nothing else.
    ///
    /// What comes back is *another* grant, behind whoever waited in the queue. What was read under
    /// the old lease may have changed since: begin the work again from its first read, and never
    /// just repeat the write that was refused. That is why this takes the old lease away, and why
    /// nothing in this crate calls it by itself.
    ///
    /// # Errors
    /// - [`ErrorKind::LeaseLost`]: this lease has ended, here or at the server. Stop the work.
    /// - [`ErrorKind::Stale`]: this lease was acquired by this very call before, and the guard's mark
    ///   is above it again. Two lock servers issue tokens for one guard, or somebody forges them:
    ///   an operator has to look.
    /// - [`ErrorKind::Invalid`]: `refusal` is no refusal of this lease's token by a guard, or its mark
    ///   is above what the lock server lets a client ask for; or the lease is shared or a permit.
    /// - Otherwise as [`release`](Self::release) and [`LockRequest::acquire`]; after
    ///   [`ErrorKind::OutcomeUnknown`] and [`ErrorKind::Unavailable`] this lease is given up too, and
    ///   ends by itself.
    ///
    /// # Cancel safety
    /// Dropping the future gives back whatever it held, in the background.
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
                 forged; an operator has to look",
                self.lock(),
                self.token()
            );
            return Err(Error::new(ErrorKind::Stale { mark: Some(mark) }, message));
        }
        let (client, mut spec) = (self.client.clone(), self.spec.clone());
        let (lock, token) = (self.lock().clone(), self.token());
        // The proof: a lease that the server still knew as the holder's ends here.
        let released = self.release_live().await;
        released.map_err(|error| error.context("the lease that the guard refused"))?;
        tracing::warn!(
            %lock, %token, %mark,
            "the lock server issues tokens below the mark of a guard: it lost its memory; acquiring \
             the lock again above the mark"
        );
        spec.min_token = Some(mark);
        let mut lease = LockRequest::from_spec(client, spec).acquire().await?;
        lease.is_above_marks = true;
        Ok(lease)
    }

    /// Beside a shared lease or a permit, a higher mark is that of another holder, and nothing is
    /// wrong with the lock server.
    fn check_alone(&self, mark: Token) -> Result<(), Error> {
        let mode = self.grant().mode;
        if mode.is_exclusive() {
            return Ok(());
        }
        let message = format!(
            "token {} of lock {} ({}) is below the mark {mark} of another holder: a guard serves one \
             of several leases, so acquire an exclusive one for what is guarded",
            self.token(),
            self.lock(),
            mode.as_str()
        );
        Err(Error::new(ErrorKind::Invalid, message))
    }

    /// The mark in a guard's refusal of this lease's own token.
    fn mark_above(&self, refusal: &Error) -> Result<Token, Error> {
        let said = |name: &str| refusal.problem().and_then(|problem| problem.extension(name));
        let presented: Option<Token> = said("presented");
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
