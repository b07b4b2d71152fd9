package relay

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestRunOnceSendsWhatIsDueAndLeavesTheRest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, sender := realStore(), &fakeSender{}
		for range 100 { // more than one statement moves
			f.AddDeferred("topic", "key", time.Second)
		}
		f.AddDeferred("topic", "key", time.Hour)
		time.Sleep(time.Minute)
		report, err := relayOn(t, f, &f.Local, sender, Config{}).RunOnce(t.Context())
		if err != nil || report.Delivered != 100 || len(f.Waiting()) != 1 {
			t.Errorf("%+v, %v; %d are deferred", report, err, len(f.Waiting()))
		}
	})
}
