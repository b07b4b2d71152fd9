package idempotent

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/boxpair/boxpair/store/inbox"
)

// recorder keeps the answer of a handler until the transaction is committed.
type recorder struct {
	header http.Header
	sent   http.Header // the header at the time of WriteHeader
	code   int
	body   bytes.Buffer
	most   int // bytes of the body
	err    error
}

func newRecorder(most int) *recorder { return &recorder{header: make(http.Header), most: most} }

// Header implements [http.ResponseWriter].
func (rec *recorder) Header() http.Header { return rec.header }

// WriteHeader implements [http.ResponseWriter].
func (rec *recorder) WriteHeader(status int) {
	if rec.code != 0 || status < 200 { // an informational answer is not final
		return
	}
	rec.code, rec.sent = status, rec.header.Clone()
}

// Write implements [http.ResponseWriter].
func (rec *recorder) Write(data []byte) (int, error) {
	rec.WriteHeader(http.StatusOK)
	if rec.body.Len()+len(data) > rec.most {
		rec.err = fmt.Errorf("answer has more than Config.MaxAnswer of %d bytes", rec.most)
		return 0, rec.err
	}
	return rec.body.Write(data)
}

func (rec *recorder) status() int {
	if rec.code == 0 {
		return http.StatusOK
	}
	return rec.code
}

func (rec *recorder) answer() inbox.Answer {
	header := rec.sent
	if header == nil {
		header = rec.header
	}
	return inbox.Answer{Status: rec.status(), Header: header, Body: rec.body.Bytes()}
}

// problem is an error answer of this package, sent as problem details (RFC 9457).
type problem struct {
	status int
	detail string
}

func (p *problem) write(rw http.ResponseWriter) {
	body, err := json.Marshal(struct {
		Title  string `json:"title"`
		Status int    `json:"status"`
		Detail string `json:"detail"`
	}{http.StatusText(p.status), p.status, p.detail})
	if err != nil { // impossible: strings and a number
		panic(err)
	}
	rw.Header().Set("Content-Type", "application/problem+json")
	if p.status == http.StatusConflict || p.status == http.StatusServiceUnavailable {
		rw.Header().Set("Retry-After", "1")
	}
	rw.WriteHeader(p.status)
	_, _ = rw.Write(body) // a disconnected client repeats its request
}
