-- Roads that become congested: a minute in which the speed is 30 % below the limit, after one in which it was not.
-- A minute is complete when there are readings from 30 seconds after it. A view: its rows go to the topic of alerts.py.
CREATE TEMPORARY VIEW congested
AS SELECT
  road,
  minutes.start + INTERVAL 1 MINUTE AS minute,
  round(speed, 1) AS speed,
  round(congestion, 2) AS congestion
FROM (
  SELECT
    road,
    minutes,
    avg(1 - speed / speed_limit) FILTER (WHERE at < minutes.start + INTERVAL 1 MINUTE) AS before,
    avg(1 - speed / speed_limit) FILTER (WHERE at >= minutes.start + INTERVAL 1 MINUTE) AS congestion,
    avg(speed) FILTER (WHERE at >= minutes.start + INTERVAL 1 MINUTE) AS speed
  FROM (
    SELECT *, window(at, '2 minutes', '1 minute') AS minutes
    FROM STREAM readings WATERMARK at DELAY OF INTERVAL 30 SECONDS
  )
  GROUP BY road, minutes
)
WHERE coalesce(before, 0) < 0.3 AND congestion >= 0.3;
