package notice_test

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/boxpair/boxpair/internal/notice"
)

func TestEveryDropIsInTheLogWhenTheQueueIsEmpty(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var records bytes.Buffer
		q := notice.Queue{Log: slog.New(slog.NewTextHandler(&records, nil))}
		calls := 0
		for range 1024 + 1 + 10 { // the first call has left the queue when further ones come
			q.Put(func() { time.Sleep(time.Millisecond); calls++ })
			synctest.Wait()
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		if calls != 1024+1 {
			t.Errorf("%d calls", calls)
		}
		if n := q.Dropped(); n != 10 {
			t.Errorf("%d calls were dropped", n)
		}
		if got := records.String(); strings.Count(got, "dropped=1\n") != 1 || strings.Count(got, "dropped=9\n") != 1 {
			t.Errorf("log:\n%s", got)
		}
	})
}
