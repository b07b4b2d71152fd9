// Package signature signs messages and verifies them, so that a consumer handles only messages of
// relays that share its key. A relay signs with relay.Config.Signer; with consumer.Config.Verifier,
// handlers are given only verified messages.
//
// # The signature on the wire
//
// A signature is the HMAC-SHA-256 of these parts as netstrings: "boxpair signature 1", the key's
// ID, the topic, the UUID, the payload, and the names and values of the signed metadata by
// ascending name, except the signature's own names. It travels as
// "1;<key's ID>;<base64url without padding>" in [transport.MetaSignature].
//
// Key, type, producer, source, version, index, schema version, content type, digest, stamp and
// re-send horizon are signed wherever a message has them. [transport.MetaSigned] lists the other
// signed names, separated by commas, with "%" as %25 and "," as %2C. Metadata that is added after
// the signing is neither listed nor signed.
//
// # Guarantees
//
//   - [Verifier.Verify] accepts a message only if its topic, UUID, payload and signed metadata are
//     as they were signed with one of the verifier's keys, and it returns only signed metadata.
//   - Printing or logging a [Key], a [Signer] or a [Verifier] shows no secret.
//
// # Limitations
//
// A key is symmetric: every verifier can sign as well, so all holders of a key have to trust each
// other. A signature does not hide the payload, and does not tell a copy from the original;
// inboxes deduplicate by dispatch ID.
package signature
