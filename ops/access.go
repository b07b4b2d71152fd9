package ops

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"

	"github.com/boxpair/boxpair/internal/choice"
	"github.com/boxpair/boxpair/internal/text"
)

// Role is what a user may do.
type Role uint8

const (
	// Reader sees every page.
	Reader Role = iota
	// Operator also makes changes.
	Operator
)

var roles = []string{Reader: "reader", Operator: "operator"}

// MarshalText returns "reader" or "operator", and an error for any other value.
func (r Role) MarshalText() ([]byte, error) { return choice.Text("Role", roles, r) }

// UnmarshalText takes "reader" and "operator", and gives an error for any other text.
func (r *Role) UnmarshalText(text []byte) error { return choice.Parse("Role", roles, text, r) }

// visitor is the sender of a request.
type visitor struct {
	role Role
	user string
}

type visitorKey struct{}

// visitorOf returns the visitor that admit has admitted.
func visitorOf(ctx context.Context) visitor {
	v, _ := ctx.Value(visitorKey{}).(visitor)
	return v
}

// maxUser is how many bytes of a user's name are kept. A pause keeps at most 255, and a name and a
// reason together fit into 1 KiB.
const maxUser = 200

var (
	errNoToken  = errors.New("the token is missing or wrong")
	errPeer     = errors.New("without Token and Authorize, only requests from the same machine are answered")
	errHost     = errors.New("without Token and Authorize, only requests to localhost or a loopback address are answered")
	errForward  = errors.New("the request came through a proxy: behind one, Token or Authorize is needed")
	errOrigin   = errors.New("the request was not sent by a page of this dashboard")
	errMayWrite = errors.New("changes need the role operator")
)

// admit returns the sender of a request, or why the request is refused.
func (h *Handler) admit(r *http.Request) (visitor, error) {
	switch {
	case h.cfg.Authorize != nil:
		role, user, err := h.cfg.Authorize(r)
		if err == nil && role > Operator {
			err = fmt.Errorf("role: %d is none of reader and operator", role)
		}
		return visitor{role, text.Clean(user, maxUser)}, err
	case h.cfg.Token != "":
		return h.byToken(r)
	}
	return visitor{h.cfg.Loopback, "loopback"}, local(r)
}

// byToken admits requests with the token. Comparing hashes takes the same time for every token.
func (h *Handler) byToken(r *http.Request) (visitor, error) {
	user, token, basic := r.BasicAuth()
	if !basic {
		scheme, bearer, _ := strings.Cut(r.Header.Get("Authorization"), " ")
		if strings.EqualFold(scheme, "bearer") {
			token = bearer
		}
	}
	got, want := sha256.Sum256([]byte(token)), sha256.Sum256([]byte(h.cfg.Token))
	if subtle.ConstantTimeCompare(got[:], want[:]) != 1 {
		return visitor{}, errNoToken
	}
	if user = text.Clean(user, maxUser); user == "" {
		user = "token"
	}
	return visitor{Operator, user}, nil
}

// local refuses requests from other machines. Another site could let its name resolve to this machine
// (DNS rebinding), so the requested host name is checked, too.
func local(r *http.Request) error {
	peer, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil || !peer.Addr().Unmap().IsLoopback() {
		return errPeer
	}
	for _, name := range []string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Real-Ip", "Via"} {
		if r.Header.Get(name) != "" {
			return errForward
		}
	}
	host := r.Host
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.Trim(host, "[]")
	if addr, err := netip.ParseAddr(host); err == nil && addr.Unmap().IsLoopback() || strings.EqualFold(host, "localhost") {
		return nil
	}
	return errHost
}

// sameOrigin tells whether a page of the same origin has sent r. Every browser sends one of the two
// headers with a POST.
func sameOrigin(r *http.Request) bool {
	site, origin := r.Header.Get("Sec-Fetch-Site"), r.Header.Get("Origin")
	if site != "" && site != "same-origin" || site == "" && origin == "" {
		return false
	}
	if origin == "" {
		return true
	}
	from, err := url.Parse(origin)
	return err == nil && from.Host != "" && strings.EqualFold(from.Host, r.Host)
}

// guard answers refused requests, and gives admitted requests to next.
func (h *Handler) guard(next http.Handler) http.Handler {
	crossOrigin := http.NewCrossOriginProtection()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		secure(w.Header())
		who, err := h.admit(r)
		if err != nil {
			h.refuse(w, r, err)
			return
		}
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			if crossOrigin.Check(r) != nil || !sameOrigin(r) {
				h.refuse(w, r, errOrigin)
				return
			}
			r.Body = http.MaxBytesReader(w, r.Body, maxBody)
		}
		ctx, cancel := context.WithTimeoutCause(context.WithValue(r.Context(), visitorKey{}, who), h.cfg.Timeout, errTimeout)
		defer cancel()
		next.ServeHTTP(w, r.WithContext(ctx))
	})
}

// maxBody bounds the form of a change: the reason and the result of an effect are the largest fields.
const maxBody = 4 << 20

var errTimeout = errors.New("the calls of the request took longer than Timeout")

// refuse answers a request that is not admitted. Errors of Authorize are for the log only.
func (h *Handler) refuse(w http.ResponseWriter, r *http.Request, err error) {
	h.cfg.Logger.WarnContext(r.Context(), "dashboard refused a request", "error", err, "method", r.Method, "peer", r.RemoteAddr)
	status := http.StatusForbidden
	if errors.Is(err, errNoToken) {
		w.Header().Set("WWW-Authenticate", `Basic realm="boxpair", charset="UTF-8"`)
		status = http.StatusUnauthorized
	}
	message := "Access is refused."
	if h.cfg.Authorize == nil || errors.Is(err, errOrigin) {
		message = "Access is refused: " + err.Error() + "."
	}
	http.Error(w, message, status)
}

// secure sets the headers of every answer. The pages have no inline script and no inline style.
func secure(header http.Header) {
	header.Set("Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "+
		"form-action 'self'; base-uri 'none'; frame-ancestors 'none'")
	header.Set("Cache-Control", "no-store")
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("X-Frame-Options", "DENY")
	header.Set("Referrer-Policy", "same-origin")
	header.Set("Cross-Origin-Opener-Policy", "same-origin")
}
