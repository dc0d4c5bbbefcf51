//! Checks of the `Fencing-Token` header: genuine, of this namespace, and of the lock that protects
//! the resource.
//!
//! No operation passes without a verified token of the right lock, or a rule or option that needs
//! none.

use std::sync::Arc;

use fence_protocol::{
    Code, FENCING_TOKEN, FencingToken, Keyring, LockName, Namespace, Token, credential,
};
use http::HeaderMap;
use service_kit::clock::Clock;
use service_kit::problem::Reject;

use crate::credible;
use crate::key::ObjectKey;
use crate::rules::{Intent, Protection, Resource, Rules};
use crate::verdict::Fence;

/// Settings that the header is checked against.
#[derive(Debug)]
pub struct FencingPolicy {
    /// Namespace that tokens must belong to.
    pub namespace: Namespace,
    /// Keys that verify signatures. `None` admits unsigned tokens.
    pub keys: Option<Keyring>,
    /// Locks that protect resources.
    pub rules: Rules,
    /// Allows reads of protected resources without a token. Such a read raises no mark, and its
    /// result may change before the reader acts on it.
    pub allow_unfenced_reads: bool,
    /// Clock that bounds unsigned tokens.
    pub clock: Arc<dyn Clock>,
}

impl FencingPolicy {
    /// Returns `true` if every key that is not denied needs a token.
    pub(crate) fn needs_tokens(&self) -> bool {
        !self.allow_unfenced_reads && self.rules.need_tokens()
    }

    /// Returns `true` if some keys cannot be read without a token, or not at all.
    pub(crate) fn protects_reads(&self) -> bool {
        !self.allow_unfenced_reads && self.rules.protect_reads()
    }

    /// Returns the fence that an operation has to pass; `None` if it needs none.
    ///
    /// # Errors
    /// 428 for a missing token, 400 for a malformed header, 401 for a token that is not genuine,
    /// 403 for one of another lock or namespace.
    pub fn to_object<'a>(
        &self,
        resource: impl Into<Resource<'a>>,
        headers: &HeaderMap,
        intent: Intent,
    ) -> Result<Option<Fence>, Reject> {
        let resource = resource.into();
        let presented = self.header(headers)?;
        let (lock, unfenced_reads) = match self.rules.protection(resource)? {
            // A token that was sent is verified above, and then not needed.
            Protection::Open => return Ok(None),
            Protection::Deny => return Err(denied(resource)),
            Protection::Lock { lock, unfenced_reads } => (lock, unfenced_reads),
        };
        let may_read = unfenced_reads || self.allow_unfenced_reads;
        match presented {
            None if intent == Intent::Read && may_read => Ok(None),
            None => Err(required(&lock, &format!("object {resource}"))),
            Some(presented) => of_lock(presented, &lock, &format!("object {resource}")).map(Some),
        }
    }

    /// Returns the lock that protects `key`; `None` if writing it needs no token.
    ///
    /// # Errors
    /// 403 for a denied key.
    pub fn lock_of(&self, key: &ObjectKey) -> Result<Option<LockName>, Reject> {
        match self.rules.protection(key)? {
            Protection::Open => Ok(None),
            Protection::Deny => Err(denied(key.into())),
            Protection::Lock { lock, .. } => Ok(Some(lock)),
        }
    }

    /// Returns the fence for sealing `lock`.
    ///
    /// # Errors
    /// As for an object, and 428 always without a token.
    pub fn to_lock(&self, lock: &LockName, headers: &HeaderMap) -> Result<Fence, Reject> {
        let what = format!("sealing lock {lock}");
        match self.header(headers)? {
            None => Err(required(lock, &what)),
            Some(presented) => of_lock(presented, lock, &what),
        }
    }

    /// Reads and verifies the header, if present.
    fn header(&self, headers: &HeaderMap) -> Result<Option<Fence>, Reject> {
        let mut values = headers.get_all(FENCING_TOKEN).iter();
        let Some(value) = values.next() else { return Ok(None) };
        let malformed = |detail: String| Reject::new(Code::MalformedToken, detail);
        if values.next().is_some() {
            return Err(malformed("the request has more than one Fencing-Token header".to_owned()));
        }
        let text = value
            .to_str()
            .map_err(|_| malformed("the Fencing-Token header is not ASCII text".to_owned()))?;
        let header: FencingToken =
            text.parse().map_err(|error: fence_protocol::Invalid| malformed(error.to_string()))?;
        self.genuine(header).map(Some)
    }

    /// Verifies that a token, from the header or a login, was issued by this namespace's lock
    /// server. Its lock is not checked.
    ///
    /// # Errors
    /// 401 for a token that is not genuine, 403 for one of another namespace.
    pub fn genuine(&self, token: FencingToken) -> Result<Fence, Reject> {
        match &self.keys {
            Some(keys) => keys
                .verify(&token)
                .map_err(|error| Reject::new(Code::BadSignature, error.to_string()))?,
            None => self.check_credible(token.token)?,
        }
        if token.namespace != self.namespace {
            let detail = format!(
                "the token is of namespace {}, this guard is of namespace {}",
                token.namespace, self.namespace
            );
            let hint = "Use the lock server of this guard's namespace, or give both servers the \
                        same --namespace.";
            return Err(Reject::new(Code::WrongLock, detail).hint(hint));
        }
        Ok(Fence::from(&token))
    }

    /// Parses and verifies a credential, one or several tokens, as a wire port gets it in the place
    /// of a password.
    ///
    /// # Errors
    /// 400 for a malformed one, and those of [`FencingPolicy::genuine`].
    pub(crate) fn credential(&self, text: &[u8]) -> Result<Vec<Fence>, Reject> {
        let malformed = |detail: String| Reject::new(Code::MalformedToken, detail);
        let text = std::str::from_utf8(text)
            .map_err(|_| malformed("the credential is not ASCII text".to_owned()))?;
        let tokens = credential::parse(text).map_err(|error| malformed(error.to_string()))?;
        tokens.into_iter().map(|token| self.genuine(token)).collect()
    }

    /// Refuses an unsigned token above any plausible one: a mark never falls, so a forged token
    /// near the maximum would refuse every holder from then on.
    fn check_credible(&self, token: Token) -> Result<(), Reject> {
        let max = credible::token_max(self.clock.wall_ms());
        if token.get() <= max {
            return Ok(());
        }
        let detail = format!(
            "the unsigned token {token} is above {max}, more than any lock server has issued by now"
        );
        Err(Reject::new(Code::BadSignature, detail))
    }
}

fn denied(resource: Resource<'_>) -> Reject {
    let detail = format!("object {resource} is denied to every caller by the guard's rules");
    let hint = "Use another key, or ask an operator for a rule that names this one's lock.";
    Reject::new(Code::Forbidden, detail).hint(hint)
}

fn required(lock: &LockName, what: &str) -> Reject {
    let detail = format!("{what} needs a token of lock {lock}, and none was sent");
    Reject::new(Code::TokenRequired, detail).with("lock", lock)
}

fn of_lock(presented: Fence, lock: &LockName, what: &str) -> Result<Fence, Reject> {
    if presented.lock == *lock {
        return Ok(presented);
    }
    let detail =
        format!("{what} needs a token of lock {lock}; the one sent is of lock {}", presented.lock);
    Err(Reject::new(Code::WrongLock, detail)
        .with("lock", lock)
        .with("presented_lock", &presented.lock))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::DefaultRule;
    use fence_protocol::token::{EPOCH_2025_MS, clock_floor};
    use http::HeaderValue;
    use service_kit::clock::ManualClock;

    const WALL_MS: u64 = EPOCH_2025_MS + 60 * 86_400_000;
    const LEASE: &str = "67e55044-10b1-426f-9247-bb680e5fe0c8";

    fn access(keys: Option<Keyring>) -> FencingPolicy {
        let rules = ["orders/{id}/**=orders/{id}", "public/**=@open"];
        FencingPolicy {
            namespace: Namespace::default(),
            keys,
            rules: Rules::new(rules.iter().map(|rule| rule.parse().unwrap()).collect()).unwrap(),
            allow_unfenced_reads: false,
            clock: Arc::new(ManualClock::new(WALL_MS, 0)),
        }
    }

    fn headers(values: &[&str]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(FENCING_TOKEN, HeaderValue::from_str(value).unwrap());
        }
        headers
    }

    fn requires_fence(
        access: &FencingPolicy,
        key: &str,
        values: &[&str],
        intent: Intent,
    ) -> Result<bool, u16> {
        let key = ObjectKey::new(key).unwrap();
        access
            .to_object(&key, &headers(values), intent)
            .map(|fence| fence.is_some())
            .map_err(|reject| reject.code().status())
    }

    fn token(lock: &str) -> String {
        format!("34;lock=\"{lock}\";lease=\"{LEASE}\"")
    }

    #[test]
    fn each_way_of_being_wrong_has_its_status() {
        let open = access(None);
        let good = token("orders/42");
        let other = token("orders/43");
        let foreign = format!("{good};ns=\"other\"");
        for (values, expected) in [
            (&[][..], Err(428)),
            (&[good.as_str()], Ok(true)),
            (&[good.as_str(), good.as_str()], Err(400)),
            (&["0"], Err(400)),
            (&[""], Err(400)),
            (&["1000000000000000;lock=\"orders/42\""], Err(400)),
            (&[other.as_str()], Err(403)),
            (&[foreign.as_str()], Err(403)),
        ] {
            for intent in [Intent::Read, Intent::Write] {
                assert_eq!(
                    requires_fence(&open, "orders/42/item", values, intent),
                    expected,
                    "{values:?}"
                );
            }
        }
    }

    #[test]
    fn open_resources_need_no_token_but_take_no_bad_one() {
        let open = access(None);
        assert_eq!(requires_fence(&open, "public/a", &[], Intent::Write), Ok(false));
        assert_eq!(requires_fence(&open, "public/a", &[&token("x")], Intent::Write), Ok(false));
        assert_eq!(requires_fence(&open, "public/a", &["nonsense"], Intent::Write), Err(400));
    }

    #[test]
    fn unfenced_reads_are_an_option_and_writes_never_are() {
        let lax = FencingPolicy { allow_unfenced_reads: true, ..access(None) };
        assert_eq!(requires_fence(&lax, "orders/42", &[], Intent::Read), Ok(false));
        assert_eq!(requires_fence(&lax, "orders/42", &[], Intent::Write), Err(428));
        assert_eq!(
            requires_fence(&lax, "orders/42", &[&token("orders/42")], Intent::Read),
            Ok(true)
        );
    }

    #[test]
    fn a_rule_can_let_reads_pass_and_a_default_can_deny() {
        let rules = ["orders/{id}/**=orders/{id},unfenced-reads", "jobs/**=jobs"];
        let rules = Rules::new(rules.iter().map(|rule| rule.parse().unwrap()).collect()).unwrap();
        let access = FencingPolicy { rules: rules.with_default(DefaultRule::Deny), ..access(None) };
        for (key, values, read, write) in [
            ("orders/42/x", &[][..], Ok(false), Err(428)),
            ("orders/42/x", &[token("orders/42").as_str()], Ok(true), Ok(true)),
            ("orders/42/x", &[token("orders/43").as_str()], Err(403), Err(403)),
            ("jobs/1", &[], Err(428), Err(428)),
            ("other", &[], Err(403), Err(403)),
            ("other", &[token("other").as_str()], Err(403), Err(403)),
        ] {
            assert_eq!(
                requires_fence(&access, key, values, Intent::Read),
                read,
                "{key} {values:?}"
            );
            assert_eq!(
                requires_fence(&access, key, values, Intent::Write),
                write,
                "{key} {values:?}"
            );
        }
        let key = ObjectKey::new("other").unwrap();
        let lax = FencingPolicy { allow_unfenced_reads: true, ..access };
        let denied = lax.to_object(&key, &HeaderMap::new(), Intent::Read).unwrap_err();
        assert_eq!(denied.code(), Code::Forbidden);
    }

    #[test]
    fn a_token_that_came_by_another_way_is_checked_as_the_header_is() {
        let keys = Keyring::parse(&format!("k1:{}", "07".repeat(32))).unwrap();
        let strict = access(Some(keys.clone()));
        let unsigned: FencingToken = token("orders/42").parse().unwrap();
        let FencingToken { token, lock, lease, namespace, .. } = unsigned.clone();
        let signed = keys.sign(token, lock.clone(), lease, namespace);
        assert_eq!(strict.genuine(signed).unwrap(), Fence::from(&unsigned));
        let status = |token| strict.genuine(token).map_err(|reject| reject.code().status());
        assert_eq!(status(unsigned), Err(401));
        let other = Namespace::new("other").unwrap();
        assert_eq!(status(keys.sign(token, lock, lease, other)), Err(403));
    }

    #[test]
    fn a_guard_with_keys_takes_genuine_tokens_only() {
        let keys = Keyring::parse(&format!("k1:{}", "07".repeat(32))).unwrap();
        let forger = Keyring::parse(&format!("k1:{}", "08".repeat(32))).unwrap();
        let unsigned: FencingToken = token("orders/42").parse().unwrap();
        let sign = |keys: &Keyring| {
            let FencingToken { token, lock, lease, namespace, .. } = unsigned.clone();
            keys.sign(token, lock, lease, namespace).to_string()
        };
        let strict = access(Some(keys.clone()));
        let verified =
            |value: String| requires_fence(&strict, "orders/42", &[&value], Intent::Write);
        assert_eq!(verified(sign(&keys)), Ok(true));
        assert_eq!(verified(sign(&forger)), Err(401));
        assert_eq!(verified(unsigned.to_string()), Err(401));
    }

    #[test]
    fn an_unsigned_token_far_above_the_clock_is_refused() {
        let year = 365 * 86_400_000;
        let keys = Keyring::parse(&format!("k1:{}", "07".repeat(32))).unwrap();
        for (number, expected) in [
            (clock_floor(WALL_MS + 9 * year), Ok(true)),
            (clock_floor(WALL_MS + 11 * year), Err(401)),
            (Token::MAX, Err(401)),
        ] {
            let value = format!("{number};lock=\"orders/42\";lease=\"{LEASE}\"");
            assert_eq!(
                requires_fence(&access(None), "orders/42", &[&value], Intent::Write),
                expected
            );
            let FencingToken { token, lock, lease, namespace, .. } = value.parse().unwrap();
            let signed = keys.sign(token, lock, lease, namespace).to_string();
            let strict = access(Some(keys.clone()));
            assert_eq!(
                requires_fence(&strict, "orders/42", &[&signed], Intent::Write),
                Ok(true),
                "signed"
            );
        }
    }

    #[test]
    fn a_seal_needs_the_token_of_its_lock() {
        let access = access(None);
        let lock = LockName::new("orders/42").unwrap();
        let seal = |values: &[&str]| {
            access.to_lock(&lock, &headers(values)).map_err(|reject| reject.code().status())
        };
        assert_eq!(seal(&[]).unwrap_err(), 428);
        assert_eq!(seal(&[&token("orders/43")]).unwrap_err(), 403);
        assert_eq!(seal(&[&token("orders/42")]).unwrap().lock, lock);
    }
}
