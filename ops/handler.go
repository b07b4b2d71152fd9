package ops

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"html/template"
	"io/fs"
	"net/http"
	"net/url"
	"path"
	"strings"

	"github.com/boxpair/boxpair/lineage"
)

//go:embed assets templates
var embedded embed.FS

// Handler serves the dashboard. It is safe for concurrent use.
type Handler struct {
	cfg      Config
	outboxes []*outboxSource
	inboxes  []*inboxSource
	pages    map[string]*template.Template
	version  string // of the assets
	served   http.Handler
	lineage  *lineage.Lineage // nil if no outbox can be searched
}

// New returns the dashboard of cfg, or an error that joins all mistakes in cfg. New does no I/O.
func New(cfg Config) (*Handler, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("ops config: %w", err)
	}
	h := &Handler{cfg: cfg, pages: make(map[string]*template.Template)}
	for _, o := range cfg.Outboxes {
		h.outboxes = append(h.outboxes, newOutboxSource(o))
	}
	for _, in := range cfg.Inboxes {
		h.inboxes = append(h.inboxes, newInboxSource(in))
	}
	if h.version, err = assetsVersion(); err != nil {
		return nil, err
	}
	if err := h.parse(); err != nil {
		return nil, err
	}
	if h.lineage, err = h.lineages(nil); err != nil {
		return nil, err
	}
	h.served = http.StripPrefix(cfg.Path, h.guard(h.routes()))
	return h, nil
}

// ServeHTTP answers a request for a page, for an asset, or for a change.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if h.cfg.Path != "" && r.URL.Path == h.cfg.Path {
		secure(w.Header())
		http.Redirect(w, r, h.cfg.Path+"/", http.StatusMovedPermanently)
		return
	}
	h.served.ServeHTTP(w, r)
}

func (h *Handler) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", h.page(h.overview))
	mux.HandleFunc("GET /live", h.live)
	mux.HandleFunc("GET /events", h.page(h.events))
	mux.HandleFunc("GET /events/{outbox}/{id}", h.page(h.event))
	mux.HandleFunc("GET /messages", h.page(h.messages))
	mux.HandleFunc("GET /messages/{id}", h.message)
	mux.HandleFunc("GET /dead", h.page(h.dead))
	mux.HandleFunc("GET /deferred", h.page(h.deferred))
	mux.HandleFunc("GET /routes", h.page(h.routesPage))
	mux.HandleFunc("GET /relays", h.page(h.relays))
	mux.HandleFunc("GET /consumers", h.page(h.consumers))
	mux.HandleFunc("GET /effects", h.page(h.effects))
	mux.HandleFunc("GET /pauses", h.page(h.pauses))
	for name, act := range map[string]action{
		"dead/redrive": h.redriveDead, "dead/discard": h.discardDead, "dead/edit": h.editDead,
		"deferred/cancel": h.cancelDeferred, "deferred/move": h.moveDeferred,
		"effects/redrive": h.redriveEffect, "effects/discard": h.discardEffect, "effects/resolve": h.resolveEffect,
		"pauses/begin": h.beginPause, "pauses/end": h.endPause,
	} {
		mux.HandleFunc("POST /"+name, h.change(name, act))
	}
	mux.HandleFunc("POST /theme", h.setTheme)
	assets, _ := fs.Sub(embedded, "assets") // the folder is embedded
	mux.Handle("GET /assets/"+h.version+"/", cached(http.StripPrefix("/assets/"+h.version+"/", http.FileServerFS(assets))))
	mux.HandleFunc("GET /", h.page(func(*http.Request) (view, error) {
		return view{}, &failure{http.StatusNotFound, "There is no such page."}
	}))
	return mux
}

// cached lets browsers keep assets, whose addresses change with their content.
func cached(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasSuffix(r.URL.Path, "/") {
			w.Header().Set("Cache-Control", "private, max-age=31536000, immutable")
		}
		next.ServeHTTP(w, r)
	})
}

// assetsVersion returns a name that changes with the content of the assets.
func assetsVersion() (string, error) {
	sum := sha256.New()
	err := fs.WalkDir(embedded, "assets", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := embedded.ReadFile(name)
		fmt.Fprintf(sum, "%s %d\n", name, len(content))
		sum.Write(content)
		return err
	})
	return hex.EncodeToString(sum.Sum(nil)[:6]), err
}

// parse reads the templates: each page is the layout with its content.
func (h *Handler) parse() error {
	layout, err := template.New("layout.html").Funcs(h.funcs()).ParseFS(embedded, "templates/layout.html", "templates/parts.html", "templates/forms.html")
	if err != nil {
		return err
	}
	files, err := fs.Glob(embedded, "templates/page_*.html")
	if err != nil {
		return err
	}
	for _, file := range files {
		page, err := layout.Clone()
		if err == nil {
			page, err = page.ParseFS(embedded, file)
		}
		if err != nil {
			return err
		}
		name := strings.TrimSuffix(strings.TrimPrefix(path.Base(file), "page_"), ".html")
		h.pages[name] = page
	}
	return nil
}

// link returns the address of a page of the dashboard. The parts of the path are escaped. args are names
// and values of the query; names without a value are left out.
func (h *Handler) link(place string, args ...any) string {
	query := url.Values{}
	for i := 0; i+1 < len(args); i += 2 {
		if value := fmt.Sprint(args[i+1]); value != "" {
			query.Set(fmt.Sprint(args[i]), value)
		}
	}
	address := h.cfg.Path + place
	if len(query) > 0 {
		address += "?" + query.Encode()
	}
	return address
}

// eventLink returns the address of the page of an event.
func (h *Handler) eventLink(outboxName string, id fmt.Stringer) string {
	return h.cfg.Path + "/events/" + url.PathEscape(outboxName) + "/" + id.String()
}

// render writes a page, without control characters and marks of the direction of writing. In texts from
// outside they could change the meaning of the page.
func (h *Handler) render(w http.ResponseWriter, r *http.Request, status int, v view) {
	var page bytes.Buffer
	if err := h.pages[v.Page].Execute(&page, h.framed(w, r, v)); err != nil {
		h.cfg.Logger.ErrorContext(r.Context(), "page of the dashboard failed", "page", v.Page, "error", err)
		http.Error(w, "The page could not be written; the log says why.", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write(bytes.Map(plain, bytes.ToValidUTF8(page.Bytes(), []byte("\uFFFD"))))
}

// plain replaces control characters and marks of the direction of writing by U+FFFD.
func plain(c rune) rune {
	switch {
	case c == '\n' || c == '\t':
		return c
	case c < ' ', 0x7f <= c && c < 0xa0, 0x202a <= c && c <= 0x202e, 0x2066 <= c && c <= 0x2069, c == 0x200e, c == 0x200f, c == 0x2028, c == 0x2029:
		return '\uFFFD'
	}
	return c
}
