-- Gold: how fast a road was in a minute, and how far that is from what it allows.
CREATE MATERIALIZED VIEW congestion
COMMENT 'Speed and congestion of each road and minute'
AS SELECT
  road,
  date_trunc('MINUTE', at) AS minute,
  count(*) AS readings,
  round(avg(speed), 1) AS speed,
  round(avg(occupancy), 3) AS occupancy,
  round(greatest(0, 1 - avg(speed) / avg(speed_limit)), 2) AS congestion
FROM readings
GROUP BY road, date_trunc('MINUTE', at);
