package ops

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/health"
)

// view is a page before it is framed.
type view struct {
	Page  string // the name of the template
	Title string
	// Live pages are read again while they are open.
	Live bool
	Data any
}

// frame is a page with the data of the layout around it.
type frame struct {
	view
	Site    string
	Path    string
	Assets  string
	Theme   string // "dark", "light", or "" for the theme of the system
	User    string
	Mayact  bool
	Nav     []navItem
	Query   string
	Here    string // the address of the page within the dashboard
	Done    *notice
	Now     time.Time
	Payload bool
}

// navItem is a link of the navigation.
type navItem struct {
	Name, Link string
	Current    bool
	Count      int64 // how much on the page waits for an operator
}

// notice is the result of a change.
type notice struct {
	Text string `json:"text"`
	Bad  bool   `json:"bad"`

	next *workingPage // the form that goes on with the change; nil if the change is complete
}

// failure is an error that the user sees, with the status of the answer.
type failure struct {
	status int
	text   string
}

func (f *failure) Error() string { return f.text }

// page returns the handler of a page.
func (h *Handler) page(build func(r *http.Request) (view, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		v, err := build(r)
		if err != nil {
			h.fail(w, r, err)
			return
		}
		h.render(w, r, http.StatusOK, v)
	}
}

// fail shows an error as a page.
func (h *Handler) fail(w http.ResponseWriter, r *http.Request, err error) {
	status := http.StatusInternalServerError
	if shown, ok := errors.AsType[*failure](err); ok {
		status = shown.status
	} else {
		h.cfg.Logger.ErrorContext(r.Context(), "request of the dashboard failed", "path", r.URL.Path, "error", err)
	}
	h.render(w, r, status, view{Page: "error", Title: http.StatusText(status), Data: upper(err.Error())})
}

const (
	themeCookie  = "boxpair_theme"
	noticeCookie = "boxpair_done"
)

// framed adds the layout's data to a page, and takes the notice of the last change from its cookie.
func (h *Handler) framed(w http.ResponseWriter, r *http.Request, v view) frame {
	who := visitorOf(r.Context())
	f := frame{
		view: v, Site: h.cfg.Title, Path: h.cfg.Path, Assets: h.cfg.Path + "/assets/" + h.version, Theme: themeOf(r),
		User: who.user, Mayact: who.role == Operator, Nav: h.nav(v.Page), Query: r.URL.Query().Get("q"), Now: time.Now(), Payload: h.cfg.Payloads,
	}
	f.Here = r.URL.RequestURI()
	if r.Method != http.MethodGet {
		f.Here = "/"
	}
	if c, err := r.Cookie(noticeCookie); err == nil {
		if raw, err := base64.RawURLEncoding.DecodeString(c.Value); err == nil {
			f.Done = new(notice)
			if json.Unmarshal(raw, f.Done) != nil {
				f.Done = nil
			}
		}
		h.setCookie(w, r, noticeCookie, "", -1)
	}
	return f
}

func (h *Handler) nav(current string) []navItem {
	var dead, pauses int64
	for _, o := range h.outboxes {
		dead, pauses = dead+o.last().Stats.Dead, pauses+int64(len(o.last().Pauses))
	}
	var uncertain int64
	for _, in := range h.inboxes {
		for _, c := range in.last().Consumers {
			s := &c.Stats
			dead, uncertain = dead+s.Dead+s.TooOld+s.Altered, uncertain+s.Effects.Uncertain+s.Effects.Dead
		}
		pauses += int64(len(in.last().Pauses))
	}
	items := []navItem{
		{"Overview", "/", current == "overview", 0},
		{"Events", "/events", current == "events" || current == "event", 0},
		{"Dead letters", "/dead", current == "dead", dead},
		{"Deferred", "/deferred", current == "deferred", 0},
		{"Topics and routes", "/routes", current == "routes", 0},
		{"Relays", "/relays", current == "relays", 0},
		{"Consumers", "/consumers", current == "consumers" || current == "messages", 0},
		{"Effects", "/effects", current == "effects", uncertain},
		{"Pauses", "/pauses", current == "pauses", pauses},
	}
	for i := range items {
		items[i].Link = h.link(items[i].Link)
	}
	return items
}

func themeOf(r *http.Request) string {
	c, err := r.Cookie(themeCookie)
	if err == nil && (c.Value == "dark" || c.Value == "light") {
		return c.Value
	}
	return ""
}

// setTheme keeps the chosen theme in a cookie, and goes back.
func (h *Handler) setTheme(w http.ResponseWriter, r *http.Request) {
	theme, age := r.PostFormValue("theme"), 365*24*60*60
	if theme != "dark" && theme != "light" {
		theme, age = "", -1
	}
	h.setCookie(w, r, themeCookie, theme, age)
	h.back(w, r)
}

func (h *Handler) setCookie(w http.ResponseWriter, r *http.Request, name, value string, age int) {
	http.SetCookie(w, &http.Cookie{ //nolint:gosec // without TLS, as on loopback, a secure cookie would not come back; none is a secret
		Name: name, Value: value, Path: h.cfg.Path + "/", MaxAge: age, HttpOnly: true, SameSite: http.SameSiteStrictMode, Secure: r.TLS != nil,
	})
}

// back sends the browser back to its last page of the dashboard.
func (h *Handler) back(w http.ResponseWriter, r *http.Request) {
	_ = r.ParseForm()                                                           // a damaged form has no page
	http.Redirect(w, r, h.cfg.Path+pageBefore(r.PostForm), http.StatusSeeOther) //nolint:gosec // pageBefore returns a path of this host
}

// pageBefore returns the page of the dashboard that a form came from.
func pageBefore(form url.Values) string {
	to := form.Get("back")
	if !strings.HasPrefix(to, "/") || strings.HasPrefix(to, "//") || strings.ContainsAny(to, "\\\r\n") {
		return "/"
	}
	return to
}

// funcs are the functions of the templates.
func (h *Handler) funcs() template.FuncMap {
	return template.FuncMap{
		"link": h.link, "eventLink": h.eventLink, "short": short, "when": when, "ago": ago, "span": span, "count": count, "upper": upper,
		"clip": clip, "rate": rate, "verb": verb, "ranges": ranges, "perSecond": func(r float64) string { return rate(&r) }, "word": word, "tone": tone,
		"dict": func(args ...any) map[string]any {
			all := make(map[string]any)
			for i := 0; i+1 < len(args); i += 2 {
				all[fmt.Sprint(args[i])] = args[i+1]
			}
			return all
		},
	}
}

// short returns the first digits of a dispatch ID, which are enough to find it.
func short(id uuid.UUID) string { return id.String()[:8] }

// when returns a time for a title.
func when(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format("2006-01-02 15:04:05.000 UTC")
}

// ago returns a time relative to now in words.
func ago(t time.Time) string {
	if t.IsZero() {
		return "–"
	}
	d := time.Since(t)
	switch {
	case d < -time.Second:
		return "in " + span(-d)
	case d < time.Second:
		return "just now"
	}
	return span(d) + " ago"
}

// span returns a duration in its two largest units.
func span(d time.Duration) string {
	switch {
	case d <= 0:
		return "–"
	case d < time.Second:
		return strconv.FormatInt(d.Milliseconds(), 10) + " ms"
	case d < time.Minute:
		return strconv.FormatInt(int64(d/time.Second), 10) + " s"
	case d < time.Hour:
		return two(d, time.Minute, "min", time.Second, "s")
	case d < 24*time.Hour:
		return two(d, time.Hour, "h", time.Minute, "min")
	}
	return two(d, 24*time.Hour, "d", time.Hour, "h")
}

func two(d, large time.Duration, largeName string, small time.Duration, smallName string) string {
	s := fmt.Sprintf("%d %s", d/large, largeName)
	if rest := d % large / small; rest > 0 && d/large < 10 {
		s += fmt.Sprintf(" %d %s", rest, smallName)
	}
	return s
}

// count returns a number with separators of thousands.
func count(n any) string {
	if p, ok := n.(*int); ok {
		n = *p
	}
	digits := fmt.Sprint(n)
	sign := ""
	if strings.HasPrefix(digits, "-") {
		sign, digits = "-", digits[1:]
	}
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return sign + digits
}

// clip returns the beginning of a text.
func clip(s string, most int) string {
	letters := []rune(s)
	if len(letters) <= most {
		return s
	}
	return string(letters[:most-1]) + "…"
}

func upper(s string) string {
	if s == "" {
		return s
	}
	return strings.ToUpper(s[:1]) + s[1:]
}

// word returns the displayed name of a state.
func word(state any) string { return strings.ReplaceAll(fmt.Sprint(state), "_", " ") }

// tone returns the class of a state: its colour stands beside its name, never alone.
func tone(state any) string {
	switch fmt.Sprint(state) {
	case string(health.Healthy), "delivered", "applied", "done", "running", "working":
		return "good"
	case string(health.Degraded), "retrying", "following", "refusing", "paused", "missing", "not done", "too_old", "altered", "uncertain", "effect_uncertain", "unavailable":
		return "warn"
	case string(health.Unhealthy), "dead", "effect_dead":
		return "bad"
	case "pending", "deferred", "doing", "answered":
		return "info"
	}
	return "mute"
}

// rate returns events per second.
func rate(perSecond *float64) string {
	switch {
	case perSecond == nil:
		return "–"
	case *perSecond >= 100:
		return count(int64(*perSecond))
	}
	return strconv.FormatFloat(*perSecond, 'f', 1, 64)
}

// verb names the redrive from a state.
func verb(state any) string {
	switch fmt.Sprint(state) {
	case "retrying":
		return "Retry now"
	case "discarded":
		return "Undo the discard"
	}
	return "Redrive"
}
